// Certificate: what each rank receives and sends, against what it must.
//
// The bound comes from the layouts alone, the received bytes from the moves, so that a planner
// cannot certify itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/layout.h"
#include "plan/pairing.h"

namespace hybridengine {

struct Move;

struct RankBytes {
  Rank rank = 0;
  int64_t needed_bytes = 0;
  int64_t held_bytes = 0;
  int64_t bound_bytes = 0;  // needed - held
  int64_t received_bytes = 0;
  int64_t sent_bytes = 0;
};

struct Certificate {
  std::vector<RankBytes> ranks;  // every rank of either side, ascending
  std::vector<Rank> senders;     // those that hold a source piece

  /// Largest received/bound over ranks; 1 where a bound is 0 and nothing is received, infinity
  /// where something is.
  double received_over_bound() const;
  /// Largest sent bytes over their mean, over `senders`; 1 when nothing is sent.
  double sender_max_over_mean() const;
  int64_t moved_bytes() const;
  std::string to_string() const;
};

/// The elements of `box` of `tensor` that `rank` holds in `layout`.
int64_t held_elems(const Layout& layout, int32_t tensor, Rank rank, const Box& box);

/// Throws as pair_tensors() does.
Certificate certify(const Layout& src, const Layout& dst, const Table<Move>& moves);
/// The same where the pairing is known.
Certificate certify(const Layout& src, const Layout& dst, const Table<Move>& moves,
                    const Pairing& pairing);

}  // namespace hybridengine
