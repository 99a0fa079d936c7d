#include "schedule/rounds.h"

#include "base/error.h"

namespace hybridengine {

Rounds::Rounds(const std::vector<RankBytes>& ranks)
    : num_ranks_(static_cast<int32_t>(ranks.size())),
      index_(ranks.empty() ? 0 : ranks.back().rank + 1) {
  for (int32_t i = 0; i < num_ranks_; ++i) index_[ranks[i].rank] = i;
}

int32_t Rounds::round_of(int32_t turn, Rank src, Rank dst, int64_t bucket_bytes) const {
  const int32_t distance = (index_[dst] - index_[src] + num_ranks_) % num_ranks_;
  int32_t round = 0;
  if (__builtin_mul_overflow(turn, num_ranks_, &round) ||
      __builtin_add_overflow(round, distance, &round))
    throw UsageError("a schedule has more rounds than 31 bits count",
                     str_cat(turn, " buckets of ", bucket_bytes, " bytes between two ranks"),
                     "Use larger buckets.");
  return round;
}

}  // namespace hybridengine
