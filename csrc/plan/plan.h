// Plan: every Move that turns a source layout into a destination layout, and the proof that no
// byte is moved without need.
//
// Vocabulary: rank d *needs* N_d bytes (its destination pieces), *holds* L_d of them already (its
// source pieces), so at least N_d - L_d bytes, its *bound*, must arrive. A Move whose two ranks are
// the same is *local*: it costs no transport and counts nowhere in the certificate. Bytes are
// counted as they travel (wire_dtype of the move).
//
// Every rank computes the same plan from the same layouts; digest() is what they compare.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/blob.h"
#include "layout/layout.h"
#include "plan/certificate.h"

namespace hybridengine {

enum class Op : uint8_t { kCopy };     // reductions join here
enum class Codec : uint8_t { kNone };  // masked and delta join here

/// One box from a piece of the source layout to a piece of the destination layout.
struct Move {
  int32_t tensor = 0;
  int32_t src_piece = 0;  // index into src layout's pieces()
  int32_t dst_piece = 0;  // index into dst layout's pieces()
  Rank src = 0;
  Rank dst = 0;
  Op op = Op::kCopy;
  Codec codec = Codec::kNone;
  uint8_t step = 0;  // 0 or 1: a move of step 1 may read what step 0 wrote
  Dtype src_dtype = Dtype::kFloat32;
  Dtype dst_dtype = Dtype::kFloat32;
  Box box;

  bool local() const { return src == dst; }
  int64_t num_bytes() const;  // on the wire
  bool operator==(const Move& other) const = default;
};

class Plan {
 public:
  Plan(LayoutPtr src, LayoutPtr dst, std::vector<Move> moves);
  /// The same where the pairing of the two layouts is known.
  Plan(LayoutPtr src, LayoutPtr dst, std::vector<Move> moves, const Pairing& pairing);

  const Layout& src() const { return *src_; }
  const Layout& dst() const { return *dst_; }
  /// Ordered by step, destination rank, destination place: local tensor, then row-major.
  const std::vector<Move>& moves() const { return moves_; }
  const Certificate& certificate() const { return certificate_; }

  /// The source and destination place of a part of a move; `box` lies within move.box.
  Place src_place(const Move& move, const Box& box) const;
  Place dst_place(const Move& move, const Box& box) const;
  /// Index of the local tensor at either end, into locals() of that side's layout.
  int32_t src_local(const Move& move) const { return src_->pieces()[move.src_piece].local; }
  int32_t dst_local(const Move& move) const { return dst_->pieces()[move.dst_piece].local; }

  /// Proves that each destination element is written exactly once, from a rank that owns it, and
  /// that no rank receives more than its bound. Independent of the planner. Throws InternalError.
  void check() const;

  std::string to_string() const;
  uint64_t digest() const;
  Blob save() const;
  /// Layouts are part of the saved bytes.
  static std::shared_ptr<const Plan> load(std::string_view blob);
  bool operator==(const Plan& other) const;

 private:
  LayoutPtr src_, dst_;
  std::vector<Move> moves_;
  Certificate certificate_;
};

using PlanPtr = std::shared_ptr<const Plan>;

/// Plans the movement. Both layouts must describe the same logical tensors (names and shapes;
/// dtypes may differ between floating types). Throws UsageError that lists what differs, or a
/// destination box that no source rank holds.
PlanPtr make_plan(const LayoutPtr& src, const LayoutPtr& dst);

}  // namespace hybridengine
