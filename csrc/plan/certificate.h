// Certificate: what each rank receives and sends, against what it must.
//
// The bound comes from the layouts alone, the received bytes from patterns and choices, so that a
// planner cannot certify itself. It is exact for every rank, and counts each kind of tensor once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/layout.h"

namespace hybridengine {

class Plan;

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
  std::vector<Rank> senders;     // those that hold a source piece, or own what others need

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

/// A plan, counted.
struct Counts {
  Certificate certificate;
  int64_t num_moves = 0;
};
Counts count_moves(const Plan& plan);

}  // namespace hybridengine
