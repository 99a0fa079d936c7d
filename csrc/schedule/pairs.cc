// What goes over each pair of ranks.
//
// Where all that travels has elements of one width, buckets have no gaps: bytes, counted per kind
// of tensor, say how many there are. Otherwise the schedules say it, one rank's at a time.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "schedule/schedule.h"

namespace hybridengine {
namespace {

using PairBytes = std::map<std::pair<Rank, Rank>, int64_t>;

/// 0 where elements of several widths travel.
int64_t only_width(const Plan& plan) {
  int64_t width = 0;
  for (const Pattern& pattern : plan.patterns()) {
    if (pattern.demands.sets.empty()) continue;
    if (width != 0 && width != pattern.demands.elem_bytes) return 0;
    width = pattern.demands.elem_bytes;
  }
  return std::max<int64_t>(width, 1);
}

class PairCounter {
 public:
  explicit PairCounter(const Plan& plan) : plan_(plan) {}

  PairBytes run() {
    for (size_t kind = 0; kind < plan_.patterns().size(); ++kind) add_kind(kind);
    DemandPosition position(plan_.sets().size());
    const auto num_tensors = static_cast<int32_t>(plan_.pairing().kind_of.size());
    for (int32_t tensor = 0; tensor < num_tensors; ++tensor) {
      add_choices(tensor, position);
      position.pass(plan_.pattern_of(tensor).demands);
    }
    return std::move(bytes_);
  }

 private:
  /// What has one holder, and so goes the same way for every tensor of the kind.
  void add_kind(size_t index) {
    const PairKind& kind = plan_.pairing().kinds[index];
    const Pattern& pattern = plan_.patterns()[index];
    const std::span<const Piece> pieces = plan_.dst().pieces_of(kind.dst_tensor);
    for (size_t i = 0; i < pieces.size(); ++i)
      for (const Slice& cut : pattern.cuttings[pattern.cutting_of[i]]) {
        const std::vector<Rank>& holders = plan_.sets().ranks(pattern.sources[cut.source].set);
        if (holders.size() > 1 || holders.front() == pieces[i].rank) continue;
        bytes_[{holders.front(), pieces[i].rank}] +=
            cut.box.num_elems() * pattern.demands.elem_bytes * kind.count;
      }
  }

  void add_choices(int32_t tensor, const DemandPosition& position) {
    const Pattern& pattern = plan_.pattern_of(tensor);
    const std::span<const Piece> pieces = plan_.dst().pieces_of(tensor);
    for (const PieceDemand& demand : pattern.piece_demands) {
      const std::vector<int64_t>& ends = plan_.sets().ends(demand.set);
      const int64_t at = position.of(demand.set), all = pattern.demands.of(demand.set);
      for (size_t i = 0; i < pieces.size(); ++i) {
        int64_t begin = at + demand.begin_bytes[i];
        const int64_t end = at + (i + 1 < pieces.size() ? demand.begin_bytes[i + 1] : all);
        auto holder = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
        for (; begin < end; ++holder) {
          const int64_t until = std::min(end, ends[holder]);
          if (until > begin)
            bytes_[{plan_.sets().ranks(demand.set)[holder], pieces[i].rank}] += until - begin;
          begin = std::max(begin, until);
        }
      }
    }
  }

  const Plan& plan_;
  PairBytes bytes_;
};

void add_schedule(const Schedule& schedule, std::vector<PairSum>& sums) {
  std::map<Rank, PairSum> of_rank;
  for (const int32_t id : schedule.outgoing()) {
    const Bucket& bucket = schedule.buckets()[id];
    PairSum& sum =
        of_rank.try_emplace(bucket.dst, PairSum{bucket.src, bucket.dst, 0, 0}).first->second;
    sum.num_bytes += bucket.num_bytes;
    ++sum.num_buckets;
  }
  for (const auto& [unused, sum] : of_rank) sums.push_back(sum);
}

}  // namespace

std::vector<PairSum> sum_pairs(const PlanPtr& plan, int64_t bucket_bytes) {
  check_bucket_bytes(*plan, bucket_bytes);
  std::vector<PairSum> sums;
  const int64_t width = plan->reduces() ? 0 : only_width(*plan);
  if (width == 0) {
    for (const RankBytes& row : plan->certificate().ranks)
      add_schedule(*make_schedule(plan, row.rank, bucket_bytes), sums);
    return sums;
  }
  const int64_t most = bucket_bytes / width * width;
  for (const auto& [pair, bytes] : PairCounter(*plan).run())
    sums.push_back({pair.first, pair.second, bytes, bytes / most + (bytes % most > 0 ? 1 : 0)});
  return sums;
}

}  // namespace hybridengine
