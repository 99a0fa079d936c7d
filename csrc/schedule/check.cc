// The proof of one rank's schedule, apart from the code that makes one.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "schedule/schedule.h"

namespace hybridengine {
namespace {

int64_t elem_bytes_of(const Move& move) { return static_cast<int64_t>(dtype_bytes(move.wire())); }

void check_bucket(const Schedule& schedule, const Bucket& bucket) {
  int64_t end = 0;
  bool plain = true;
  ensure(bucket.src == schedule.rank() || bucket.dst == schedule.rank(),
         "a rank has a bucket of others",
         [&] { return str_cat("rank ", bucket.src, " to ", bucket.dst); });
  for (const Item& item : bucket.items) {
    const Move& move = schedule.moves()[item.move];
    ensure(move.src == bucket.src && move.dst == bucket.dst && move.step == bucket.step &&
               (!move.local() || schedule.plan().reduces()) && move.box.contains(item.box) &&
               !item.box.empty(),
           "a bucket holds what is not its pair's", [&] { return str_cat("move ", item.move); });
    ensure(item.offset_bytes >= end && item.offset_bytes % elem_bytes_of(move) == 0,
           "an item of a bucket has a wrong place", [&] { return str_cat("move ", item.move); });
    end = item.offset_bytes + item_bytes(move, item);
    plain = plain && move.op == Op::kCopy && move.codec == Codec::kNone &&
            move.src_dtype == move.dst_dtype;
  }
  ensure(end == bucket.num_bytes && end <= schedule.bucket_bytes() && end > 0,
         "a bucket has a wrong size",
         [&] { return str_cat(bucket.num_bytes, " of ", schedule.bucket_bytes(), " bytes"); });
  ensure(bucket.plain == plain && bucket.round >= 0, "a bucket is not what its items make it",
         [&] { return str_cat("rank ", bucket.src, " to ", bucket.dst); });
}

using Parts = std::map<int64_t, const Item*>;  // of a gate, by offset

Parts parts_of(const Schedule& schedule, const Gate& gate) {
  Parts parts;
  for (const int32_t id : gate.landings)
    for (const Item& item : schedule.buckets()[id].items) {
      const Item& first = *parts.try_emplace(item.offset_bytes, &item).first->second;
      ensure(first.box == item.box &&
                 schedule.moves()[first.move].dst_piece == schedule.moves()[item.move].dst_piece,
             "contributions to different places lie at one offset",
             [&] { return str_cat("offset ", item.offset_bytes); });
    }
  return parts;
}

/// Contributions to this rank feed a gate, and what leaves it in step 1 has come out of one.
void check_gates(const Schedule& schedule) {
  std::vector<Parts> parts;
  for (const Gate& gate : schedule.gates()) {
    ensure(!gate.landings.empty(), "a gate waits for nothing", [] { return std::string(); });
    parts.push_back(parts_of(schedule, gate));
  }
  const auto num_gates = static_cast<int32_t>(parts.size());
  for (const Bucket& bucket : schedule.buckets()) {
    const bool folds =
        schedule.plan().reduces() && bucket.step == 0 && bucket.dst == schedule.rank();
    const bool waits = bucket.step == 1 && bucket.src == schedule.rank();
    ensure((bucket.feeds >= 0) == folds && (bucket.gate >= 0) == waits &&
               bucket.feeds < num_gates && bucket.gate < num_gates,
           "a bucket has no gate that it should have, or one that it should not",
           [&] { return str_cat("gate ", bucket.gate, ", into gate ", bucket.feeds); });
    if (bucket.gate < 0) continue;
    for (const Item& item : bucket.items) {
      int64_t elems = 0;
      for (const auto& [unused, part] : parts[bucket.gate])
        if (schedule.moves()[part->move].dst_piece == schedule.moves()[item.move].src_piece)
          elems += intersect(part->box, item.box).num_elems();
      ensure(elems == item.box.num_elems(), "a bucket carries what is not out of its gate",
             [&] { return str_cat("gate ", bucket.gate, ", move ", item.move); });
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
    check_bucket(*this, bucket);
    for (const Item& item : bucket.items) items.emplace_back(item.move, &item);
  }
  check_gates(*this);
  std::stable_sort(items.begin(), items.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Box> boxes;
  auto next = items.begin();
  for (int32_t index = 0; index < static_cast<int32_t>(moves_.size()); ++index) {
    boxes.clear();
    for (; next != items.end() && next->first == index; ++next) boxes.push_back(next->second->box);
    const Move& move = moves_[index];
    if (!move.local() || plan_->reduces()) check_cut(move, index, boxes);
  }
}

}  // namespace hybridengine
