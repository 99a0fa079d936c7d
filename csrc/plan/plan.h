// Plan: what turns a source layout into a destination layout, and the proof that no byte is moved
// without need.
//
// Vocabulary: rank d *needs* N_d bytes (its destination pieces), *holds* L_d of them already (its
// source pieces), so at least N_d - L_d bytes, its *bound*, must arrive. A Move whose two ranks are
// the same is *local*: it costs no transport and counts nowhere in the certificate. Bytes are
// counted as they travel (wire_dtype of the move).
//
// A plan holds patterns (plan/pattern.h), one per kind of tensor, and the choices among replicas,
// one number per holder. Neither grows with tensors times ranks; moves_of() writes out what one
// rank has a part in.
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
#include "plan/move.h"
#include "plan/pattern.h"

namespace hybridengine {

class Plan {
 public:
  /// `patterns` are those of the kinds of `pairing`; the ends of `sets` are dealt.
  Plan(LayoutPtr src, LayoutPtr dst, Pairing pairing, std::vector<Pattern> patterns,
       HolderSets sets);

  const Layout& src() const { return *src_; }
  const Layout& dst() const { return *dst_; }
  bool reduces() const { return src_->op() != Op::kCopy; }
  const Pairing& pairing() const { return pairing_; }
  const std::vector<Pattern>& patterns() const { return patterns_; }
  const HolderSets& sets() const { return sets_; }
  const Pattern& pattern_of(int32_t tensor) const { return patterns_[pairing_.kind_of[tensor]]; }
  const Certificate& certificate() const { return certificate_; }

  /// The moves that `rank` sends, receives or keeps, ordered by step, destination rank, destination
  /// place (local tensor, then row-major); contributions to one place by source rank.
  Table<Move> moves_of(Rank rank) const;
  /// Of those the ones that it receives or keeps, in the same order.
  Table<Move> arrivals_of(Rank rank) const;
  /// Of all ranks together, without making them.
  int64_t num_moves() const { return num_moves_; }
  /// Bytes of the widest element that travels; 1 where none does.
  int64_t widest_elem_bytes() const;

  /// The source and destination place of a part of a move; `box` lies within move.box.
  LocalPlace src_place(const Move& move, const Box& box) const;
  LocalPlace dst_place(const Move& move, const Box& box) const;
  /// Index of the local tensor at either end, into locals() of that side's layout.
  int32_t src_local(const Move& move) const { return src_pieces(move)[move.src_piece].local; }
  int32_t dst_local(const Move& move) const { return dst_->pieces()[move.dst_piece].local; }

  /// Proves that each destination element is written exactly once, from a rank that owns it, and
  /// that no rank receives more than its bound; per kind of tensor. Independent of the planner.
  /// Throws InternalError.
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
  void put(BlobWriter& writer) const;

  LayoutPtr src_, dst_;
  Pairing pairing_;
  std::vector<Pattern> patterns_;  // by pair kind
  HolderSets sets_;
  Certificate certificate_;
  int64_t num_moves_ = 0;
};

using PlanPtr = std::shared_ptr<const Plan>;

/// Plans the movement. Both layouts must describe the same logical tensors (names and shapes;
/// dtypes may differ between floating types). Throws UsageError that lists what differs, or a
/// destination box that no source rank holds, or a partial destination.
PlanPtr make_plan(const LayoutPtr& src, const LayoutPtr& dst);

}  // namespace hybridengine
