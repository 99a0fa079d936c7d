// Plan: every Move that turns a source layout into a destination layout, and the proof that no
// byte is moved without need.
//
// Vocabulary: rank d *needs* N_d bytes (its destination pieces), *holds* L_d of them already (its
// source pieces), so at least N_d - L_d bytes, its *bound*, must arrive. A Move whose two ranks are
// the same is *local*: it costs no transport and counts nowhere in the certificate. Bytes are
// counted as they travel (wire_dtype of the move).
//
// From a partial layout, step 0 carries the contributions of each destination element to one of the
// ranks that need it, its *owner*, who combines them; in step 1 owners copy what came out to the
// other ranks that need it. A move of step 1 reads its owner's *destination* piece. The bound is
// then the owned bytes of every other contributor, and what others own of the need.
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

enum class Codec : uint8_t { kNone };  // masked and delta join here

/// One box from a piece of the source layout to a piece of the destination layout.
struct Move {
  int32_t tensor = 0;
  int32_t src_piece = 0;  // index into src layout's pieces(); of step 1: into dst layout's
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
  bool reduces() const { return op != Op::kCopy; }
  /// The type that travels: contributions as they are, so that only their sum is rounded.
  Dtype wire() const { return reduces() ? src_dtype : wire_dtype(src_dtype, dst_dtype); }
  int64_t num_bytes() const;  // on the wire
  bool operator==(const Move& other) const = default;
};

class Plan {
 public:
  Plan(LayoutPtr src, LayoutPtr dst, Table<Move> moves);
  /// The same where the pairing of the two layouts is known.
  Plan(LayoutPtr src, LayoutPtr dst, Table<Move> moves, const Pairing& pairing);

  const Layout& src() const { return *src_; }
  const Layout& dst() const { return *dst_; }
  bool reduces() const { return src_->op() != Op::kCopy; }
  /// Ordered by step, destination rank, destination place: local tensor, then row-major;
  /// contributions to one place by source rank.
  const Table<Move>& moves() const { return moves_; }
  const Certificate& certificate() const { return certificate_; }

  /// The source and destination place of a part of a move; `box` lies within move.box.
  Place src_place(const Move& move, const Box& box) const;
  Place dst_place(const Move& move, const Box& box) const;
  /// Index of the local tensor at either end, into locals() of that side's layout.
  int32_t src_local(const Move& move) const { return src_pieces(move)[move.src_piece].local; }
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

  /// Those that src_piece of a move counts.
  const Table<Piece>& src_pieces(const Move& move) const {
    return move.step == 0 ? src_->pieces() : dst_->pieces();
  }

 private:
  LayoutPtr src_, dst_;
  Table<Move> moves_;
  Certificate certificate_;
};

using PlanPtr = std::shared_ptr<const Plan>;

/// Plans the movement. Both layouts must describe the same logical tensors (names and shapes;
/// dtypes may differ between floating types). Throws UsageError that lists what differs, or a
/// destination box that no source rank holds, or a partial destination.
PlanPtr make_plan(const LayoutPtr& src, const LayoutPtr& dst);

/// How many moves make_plan() would make from a layout that is not partial, without making them:
/// the parts of all tensors. It makes a few more, where the shares of two senders meet amid a part.
/// Throws as make_plan() does.
int64_t count_moves(const LayoutPtr& src, const LayoutPtr& dst);

/// make_plan() from a partial layout.
PlanPtr make_reducing_plan(const LayoutPtr& src, const LayoutPtr& dst);

/// Plan::check() of such a plan.
void check_reducing_plan(const Plan& plan);

/// What each rank must receive at least where a source is partial: bound_bytes of `rows`, which are
/// those of all ranks, ascending.
void bound_reducing(const Layout& src, const Layout& dst, const Table<Move>& moves,
                    const Pairing& pairing, std::vector<RankBytes>& rows);

}  // namespace hybridengine
