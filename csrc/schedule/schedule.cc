#include "schedule/schedule.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"

namespace hybridengine {

Schedule::Schedule(PlanPtr plan, Rank rank, int64_t bucket_bytes, bool in_order, Table<Move> moves,
                   std::vector<Bucket> buckets)
    : plan_(std::move(plan)),
      rank_(rank),
      bucket_bytes_(bucket_bytes),
      in_order_(in_order),
      moves_(std::move(moves)),
      buckets_(std::move(buckets)) {
  number_buckets();
  make_gates();
  std::vector<int32_t> order(buckets_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::pair(buckets_[a].step, buckets_[a].round) <
           std::pair(buckets_[b].step, buckets_[b].round);
  });
  for (const int32_t id : order) {
    const Bucket& bucket = buckets_[id];
    if (bucket.local()) continue;
    (bucket.dst == rank_ ? incoming_ : outgoing_).push_back(id);
  }
  if (plan_->reduces()) return;
  for (size_t i = 0; i < moves_.size(); ++i)
    if (moves_[i].local()) local_.push_back(static_cast<int32_t>(i));
}

/// Both ends make the buckets of a pair in the same order.
void Schedule::number_buckets() {
  for (const int step : {0, 1})
    for (size_t id = 0; id < buckets_.size(); ++id) {
      Bucket& bucket = buckets_[id];
      if (bucket.step != step) continue;
      std::vector<int32_t>& ids = by_pair_[{bucket.src, bucket.dst}];
      bucket.index = static_cast<int32_t>(ids.size());
      ids.push_back(static_cast<int32_t>(id));
    }
}

void Schedule::make_gates() {
  for (size_t id = 0; id < buckets_.size(); ++id) {
    const int32_t gate = buckets_[id].feeds;
    if (gate < 0) continue;
    if (gate >= static_cast<int32_t>(gates_.size())) gates_.resize(gate + 1);
    gates_[gate].landings.push_back(static_cast<int32_t>(id));
  }
  for (Gate& gate : gates_) {
    gate.op = plan_->src().op();
    std::sort(gate.landings.begin(), gate.landings.end(),
              [&](int32_t a, int32_t b) { return buckets_[a].src < buckets_[b].src; });
  }
}

int32_t Schedule::id_of(Rank src, Rank dst, uint32_t index) const {
  const auto found = by_pair_.find({src, dst});
  return found == by_pair_.end() || index >= found->second.size() ? -1 : found->second[index];
}

std::string Schedule::to_string() const {
  std::string text = str_cat("rank ", rank_, ": ", buckets_.size(), " buckets of at most ",
                             bucket_bytes_, " bytes\n");
  for (const Bucket& bucket : buckets_) {
    text +=
        str_cat("rank ", bucket.src, " -> rank ", bucket.dst, " bucket ", bucket.index, ": step ",
                int{bucket.step}, ", round ", bucket.round, ", ", bucket.items.size(), " items, ",
                bucket.num_bytes, " bytes", bucket.plain ? ", plain" : "");
    if (bucket.gate >= 0) text += str_cat(", after gate ", bucket.gate);
    if (bucket.feeds >= 0) text += str_cat(", into gate ", bucket.feeds);
    text += "\n";
  }
  return text;
}

bool Schedule::operator==(const Schedule& other) const {
  return rank_ == other.rank_ && bucket_bytes_ == other.bucket_bytes_ &&
         in_order_ == other.in_order_ && buckets_ == other.buckets_ && *plan_ == *other.plan_;
}

uint64_t Schedule::digest() const {
  Digest digest;
  digest.update_number(plan_->digest());
  digest.update_number(bucket_bytes_);
  digest.update_number<uint8_t>(in_order_);
  return digest.value();
}

}  // namespace hybridengine
