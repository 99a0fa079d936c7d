#include "schedule/fuse.h"

#include <algorithm>

#include "base/error.h"

namespace hybridengine {

Fuser::Fuser(const Plan& plan, Rank rank, int64_t bucket_bytes)
    : rank_(rank), rounds_(plan.certificate().ranks), bucket_bytes_(bucket_bytes) {}

void Fuser::begin_destination(Rank dst) {
  dst_ = dst;
  next_turn_ = 0;
  begin_stretch();
}

void Fuser::begin_stretch() {
  for (auto& [unused, open] : open_) close(open);
  open_.clear();
  last_ = nullptr;
  first_turn_ = next_turn_++;
  if (dst_ == rank_) ++gate_;
}

int64_t Fuser::make_room(const Move& move, int64_t elems) {
  const auto elem_bytes = static_cast<int64_t>(dtype_bytes(move.wire()));
  Open& open = open_of(move);
  if (open.used_bytes >= 0) {
    const int64_t offset = aligned(open.used_bytes, elem_bytes);
    if (offset + elems * elem_bytes <= bucket_bytes_) return offset;
  }
  open_bucket(move, open);
  return 0;
}

void Fuser::append(const Move& move, int32_t index, const Box& box, int64_t offset_bytes) {
  Open& open = open_of(move);
  if (open.used_bytes < 0) open_bucket(move, open);
  const Item item{index, offset_bytes, box};
  open.used_bytes = offset_bytes + item_bytes(move, item);
  if (open.bucket < 0) return;
  open.items.push_back(item);
  Bucket& bucket = buckets_[open.bucket];
  bucket.plain = bucket.plain && !move.reduces() && move.codec == Codec::kNone &&
                 move.src_dtype == move.dst_dtype;
}

std::vector<Bucket> Fuser::finish() {
  begin_stretch();
  return std::move(buckets_);
}

Fuser::Open& Fuser::open_of(const Move& move) {
  const Pair pair{move.src, move.dst, move.step};
  if (last_ == nullptr || last_->first != pair) last_ = &*open_.try_emplace(pair).first;
  return last_->second;
}

void Fuser::open_bucket(const Move& move, Open& open) {
  const bool gated = move.reduces() || move.step == 1;
  if (open.used_bytes < 0)
    open.turn = first_turn_;
  else if (!gated)
    ++open.turn;
  next_turn_ = std::max(next_turn_, open.turn + 1);
  close(open);
  open.used_bytes = 0;
  if (move.src != rank_ && move.dst != rank_) return;
  open.bucket = static_cast<int32_t>(buckets_.size());
  buckets_.push_back({.src = move.src,
                      .dst = move.dst,
                      .step = move.step,
                      .plain = true,
                      .round = rounds_.round_of(open.turn, move.src, move.dst, bucket_bytes_),
                      .gate = move.step == 1 && move.src == rank_ ? gate_ : -1,
                      .feeds = move.reduces() && move.dst == rank_ ? gate_ : -1,
                      .items = {}});
}

void Fuser::close(Open& open) {
  if (open.bucket >= 0) {
    buckets_[open.bucket].items.assign(open.items.begin(), open.items.end());
    buckets_[open.bucket].num_bytes = open.used_bytes;
  }
  open.items.clear();
  open.bucket = -1;
}

void check_bucket_bytes(const Plan& plan, int64_t bucket_bytes) {
  const int64_t widest = plan.widest_elem_bytes();
  if (bucket_bytes < widest)
    throw UsageError(
        "a bucket cannot hold one element",
        str_cat("bucket_bytes is ", bucket_bytes, ", the widest element has ", widest, " bytes"),
        str_cat("Use a positive size; the default is ", kDefaultBucketBytes, "."));
}

SchedulePtr make_schedule(const PlanPtr& plan, Rank rank, int64_t bucket_bytes, bool in_order) {
  check_bucket_bytes(*plan, bucket_bytes);
  Table<Move> moves = plan->moves_of(rank);
  std::vector<Bucket> buckets = plan->reduces()
                                    ? fuse_combined(*plan, rank, moves, bucket_bytes)
                                    : fuse_copied(*plan, rank, moves, bucket_bytes, in_order);
  return std::make_shared<const Schedule>(plan, rank, bucket_bytes, in_order, std::move(moves),
                                          std::move(buckets));
}

}  // namespace hybridengine
