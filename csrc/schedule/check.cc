// The proof of a schedule, apart from the code that makes one.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "schedule/schedule.h"

namespace hybridengine {
namespace {

int64_t elem_bytes_of(const Move& move) { return static_cast<int64_t>(dtype_bytes(move.wire())); }

void check_bucket(const Plan& plan, const Bucket& bucket, int64_t bucket_bytes) {
  int64_t end = 0;
  bool direct = true;
  for (const Item& item : bucket.items) {
    const Move& move = plan.moves()[item.move];
    ensure(move.src == bucket.src && move.dst == bucket.dst && move.step == bucket.step &&
               (!move.local() || plan.reduces()) && move.box.contains(item.box) &&
               !item.box.empty(),
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

/// Buckets of a plan without contributions are in no group; those of one with some are in the group
/// of an owner, and what leaves it in step 1 has come out of it.
void check_groups(const Schedule& schedule) {
  const Plan& plan = schedule.plan();
  for (const Bucket& bucket : schedule.buckets())
    ensure((bucket.group >= 0) == plan.reduces() &&
               (bucket.group < 0 || bucket.group < static_cast<int32_t>(schedule.groups().size())),
           "a bucket has no group that it should have, or one that it should not",
           [&] { return str_cat("group ", bucket.group); });
  std::vector<std::map<int64_t, const Item*>> parts(schedule.groups().size());  // by offset
  for (size_t group = 0; group < schedule.groups().size(); ++group)
    for (const int32_t id : schedule.groups()[group]) {
      const Bucket& bucket = schedule.buckets()[id];
      ensure(bucket.dst == schedule.buckets()[schedule.groups()[group].front()].dst,
             "a group has two owners", [&] { return str_cat("group ", group); });
      for (const Item& item : bucket.items) {
        const Item& first = *parts[group].try_emplace(item.offset_bytes, &item).first->second;
        ensure(first.box == item.box &&
                   plan.moves()[first.move].dst_piece == plan.moves()[item.move].dst_piece,
               "contributions to different places lie at one offset",
               [&] { return str_cat("group ", group, ", offset ", item.offset_bytes); });
      }
    }
  for (const Bucket& bucket : schedule.buckets()) {
    if (bucket.step == 0) continue;
    for (const Item& item : bucket.items) {
      int64_t elems = 0;
      for (const auto& [unused, part] : parts[bucket.group])
        if (plan.moves()[part->move].dst_piece == plan.moves()[item.move].src_piece)
          elems += intersect(part->box, item.box).num_elems();
      ensure(elems == item.box.num_elems(), "a bucket carries what is not out of its group",
             [&] { return str_cat("group ", bucket.group, ", move ", item.move); });
    }
  }
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
  check_groups(*this);
  std::stable_sort(items.begin(), items.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Box> boxes;
  auto next = items.begin();
  for (int32_t index = 0; index < static_cast<int32_t>(plan_->moves().size()); ++index) {
    boxes.clear();
    for (; next != items.end() && next->first == index; ++next) boxes.push_back(next->second->box);
    const Move& move = plan_->moves()[index];
    if (!move.local() || plan_->reduces()) check_cut(move, index, boxes);
  }
}

}  // namespace hybridengine
