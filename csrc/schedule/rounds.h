// Rounds: the order in which buckets travel, the same at both ends.
//
// The buckets of a pair take *turns* 0, 1, ... One travels in round turn * ranks + (distance from
// source to destination), so in one round the pairs form partial matchings and no two destinations
// start with the same source. An order only: nobody waits for a round to be over.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/certificate.h"

namespace hybridengine {

class Rounds {
 public:
  /// Of all ranks of a plan.
  explicit Rounds(const std::vector<RankBytes>& ranks);
  /// Throws UsageError where 31 bits do not count the rounds; `bucket_bytes` is for its text.
  int32_t round_of(int32_t turn, Rank src, Rank dst, int64_t bucket_bytes) const;

 private:
  int32_t num_ranks_;
  std::vector<int32_t> index_;  // of a rank among those of the plan
};

}  // namespace hybridengine
