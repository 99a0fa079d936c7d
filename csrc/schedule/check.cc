// The proof of a schedule, apart from the code that makes one.
#include <algorithm>

#include "base/error.h"
#include "schedule/schedule.h"

namespace hybridengine {
namespace {

int64_t elem_bytes_of(const Move& move) {
  return static_cast<int64_t>(dtype_bytes(wire_dtype(move.src_dtype, move.dst_dtype)));
}

void check_bucket(const Plan& plan, const Bucket& bucket, int64_t bucket_bytes) {
  int64_t end = 0;
  bool direct = true;
  for (const Item& item : bucket.items) {
    const Move& move = plan.moves()[item.move];
    ensure(move.src == bucket.src && move.dst == bucket.dst && move.step == bucket.step &&
               !move.local() && move.box.contains(item.box) && !item.box.empty(),
           "a bucket holds what is not its pair's", [&] { return str_cat("move ", item.move); });
    ensure(item.offset_bytes >= end && item.offset_bytes % elem_bytes_of(move) == 0,
           "an item of a bucket has a wrong place", [&] { return str_cat("move ", item.move); });
    end = item.offset_bytes + item.box.num_elems() * elem_bytes_of(move);
    direct = direct && move.op == Op::kCopy && move.codec == Codec::kNone &&
             move.src_dtype == move.dst_dtype;
  }
  ensure(end == bucket.num_bytes && end <= bucket_bytes && end > 0, "a bucket has a wrong size",
         [&] { return str_cat(bucket.num_bytes, " of ", bucket_bytes, " bytes"); });
  ensure(bucket.direct == direct && bucket.round >= 0, "a bucket is not what its items make it",
         [&] { return str_cat("rank ", bucket.src, " to ", bucket.dst); });
}

void check_cut(const Move& move, int32_t index, const std::vector<Box>& boxes) {
  const auto facts = [&] { return str_cat("move ", index, ", ", move.box.to_string()); };
  ensure(!find_overlap(move.box, boxes), "a part of a move is in the buckets twice", facts);
  int64_t elems = 0;
  for (const Box& box : boxes) elems += box.num_elems();
  ensure(elems == move.box.num_elems(), "a part of a move is in no bucket", facts);
}

}  // namespace

void Schedule::check() const {
  std::vector<std::pair<int32_t, const Item*>> items;  // by move
  for (const Bucket& bucket : buckets_) {
    check_bucket(*plan_, bucket, bucket_bytes_);
    for (const Item& item : bucket.items) items.emplace_back(item.move, &item);
  }
  std::stable_sort(items.begin(), items.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Box> boxes;
  auto next = items.begin();
  for (int32_t index = 0; index < static_cast<int32_t>(plan_->moves().size()); ++index) {
    boxes.clear();
    for (; next != items.end() && next->first == index; ++next) boxes.push_back(next->second->box);
    if (!plan_->moves()[index].local()) check_cut(plan_->moves()[index], index, boxes);
  }
}

}  // namespace hybridengine
