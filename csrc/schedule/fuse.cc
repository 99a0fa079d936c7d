// Cutting and fusing moves into buckets.
//
// Vocabulary: each ordered pair of ranks has at most one *open* bucket per step; moves are appended
// in plan order and cut where the bucket is full. A *window* is a stretch of bucket_bytes of what
// one destination rank receives, in plan order; with `in_order` a bucket is closed at the end of
// its window, so that nothing of a later window arrives in it.
//
// Rounds: the k-th bucket of a pair (with `in_order`: that of window k) travels in round k * world
// + (distance from src to dst), so in one round the pairs form partial matchings and no two
// destinations start with the same source.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "schedule/schedule.h"

namespace hybridengine {
namespace {

class Fuser {
 public:
  Fuser(const Plan& plan, int64_t bucket_bytes, bool in_order)
      : plan_(plan), bucket_bytes_(bucket_bytes), in_order_(in_order) {
    for (const RankBytes& row : plan.certificate().ranks) world_ = std::max(world_, row.rank + 1);
  }

  std::vector<Bucket> run() {
    for (int32_t i = 0; i < static_cast<int32_t>(plan_.moves().size()); ++i)
      if (!plan_.moves()[i].local()) add_move(i);
    return std::move(buckets_);
  }

 private:
  struct Open {
    int32_t bucket = -1;
    int64_t window = 0;
    int32_t count = 0;  // buckets of this pair so far
  };

  void add_move(int32_t index) {
    const Move& move = plan_.moves()[index];
    const auto elem_bytes =
        static_cast<int64_t>(dtype_bytes(wire_dtype(move.src_dtype, move.dst_dtype)));
    todo_.assign(1, move.box);
    while (!todo_.empty()) {
      const Box box = todo_.back();
      todo_.pop_back();
      int64_t offset = 0;
      const int64_t room = room_for(move, elem_bytes, offset);
      if (box.num_elems() <= room) {
        append(index, box, offset, elem_bytes);
        continue;
      }
      head_.clear();
      tail_.clear();
      split_row_major(box, room, head_, tail_);
      todo_.insert(todo_.end(), tail_.rbegin(), tail_.rend());
      todo_.insert(todo_.end(), head_.rbegin(), head_.rend());
    }
  }

  /// Elements that still fit into the open bucket of the move's pair, at least 1; opens a new
  /// bucket where none does.
  int64_t room_for(const Move& move, int64_t elem_bytes, int64_t& offset) {
    int64_t& received = received_[move.dst];
    const int64_t window = in_order_ ? received / bucket_bytes_ : 0;
    const int64_t left_in_window =
        in_order_ ? (window + 1) * bucket_bytes_ - received : bucket_bytes_;
    Open& open = open_[{move.src, move.dst}];
    for (;;) {
      if (open.bucket >= 0 && open.window == window) {
        const Bucket& bucket = buckets_[open.bucket];
        offset = (bucket.num_bytes + elem_bytes - 1) / elem_bytes * elem_bytes;
        const int64_t room = std::min(bucket_bytes_ - offset, left_in_window) / elem_bytes;
        if (room > 0) return room;
        // The last bytes of a window that hold no whole element belong to the next one.
        if (left_in_window < elem_bytes && bucket_bytes_ - offset >= elem_bytes) return 1;
      }
      open_bucket(move, window, open);
    }
  }

  void open_bucket(const Move& move, int64_t window, Open& open) {
    Bucket bucket{.src = move.src, .dst = move.dst, .step = move.step, .direct = true, .items = {}};
    const auto turn = in_order_ ? static_cast<int32_t>(window) : open.count++;
    bucket.round = turn * world_ + (move.dst - move.src + world_) % world_;
    open.bucket = static_cast<int32_t>(buckets_.size());
    open.window = window;
    buckets_.push_back(std::move(bucket));
  }

  void append(int32_t index, const Box& box, int64_t offset, int64_t elem_bytes) {
    const Move& move = plan_.moves()[index];
    Bucket& bucket = buckets_[open_[{move.src, move.dst}].bucket];
    const int64_t bytes = box.num_elems() * elem_bytes;
    bucket.items.push_back({index, offset, box});
    bucket.num_bytes = offset + bytes;
    bucket.direct = bucket.direct && move.op == Op::kCopy && move.codec == Codec::kNone &&
                    move.src_dtype == move.dst_dtype;
    received_[move.dst] += bytes;
  }

  const Plan& plan_;
  const int64_t bucket_bytes_;
  const bool in_order_;
  Rank world_ = 0;
  std::map<std::pair<Rank, Rank>, Open> open_;
  std::map<Rank, int64_t> received_;
  std::vector<Box> todo_, head_, tail_;
  std::vector<Bucket> buckets_;
};

int64_t widest_elem(const Plan& plan) {
  int64_t widest = 1;
  for (const Move& move : plan.moves())
    widest = std::max(
        widest, static_cast<int64_t>(dtype_bytes(wire_dtype(move.src_dtype, move.dst_dtype))));
  return widest;
}

}  // namespace

SchedulePtr make_schedule(const PlanPtr& plan, int64_t bucket_bytes, bool in_order) {
  if (bucket_bytes < widest_elem(*plan))
    throw UsageError("a bucket cannot hold one element",
                     str_cat("bucket_bytes is ", bucket_bytes, ", the widest element has ",
                             widest_elem(*plan), " bytes"),
                     str_cat("Use a positive size; the default is ", kDefaultBucketBytes, "."));
  std::vector<Bucket> buckets = Fuser(*plan, bucket_bytes, in_order).run();
  return std::make_shared<const Schedule>(plan, bucket_bytes, std::move(buckets));
}

void Schedule::check() const {
  std::vector<int64_t> elems(plan_->moves().size(), 0);
  for (const Bucket& bucket : buckets_) {
    int64_t end = 0;
    for (const Item& item : bucket.items) {
      const Move& move = plan_->moves()[item.move];
      const auto elem_bytes =
          static_cast<int64_t>(dtype_bytes(wire_dtype(move.src_dtype, move.dst_dtype)));
      ensure(item.offset_bytes >= end, "two items of a bucket overlap",
             [&] { return str_cat("move ", item.move); });
      ensure(move.box.contains(item.box) && move.src == bucket.src && move.dst == bucket.dst,
             "a bucket holds what is not its pair's", [&] { return str_cat("move ", item.move); });
      end = item.offset_bytes + item.box.num_elems() * elem_bytes;
      elems[item.move] += item.box.num_elems();
    }
    ensure(end == bucket.num_bytes && end <= bucket_bytes_ && end > 0, "a bucket has a wrong size",
           [&] { return str_cat(bucket.num_bytes, " of ", bucket_bytes_, " bytes"); });
  }
  // Items of one move come from cutting it, so equal counts mean that it was cut without loss.
  for (size_t i = 0; i < elems.size(); ++i)
    ensure(elems[i] == (plan_->moves()[i].local() ? 0 : plan_->moves()[i].box.num_elems()),
           "a move is not in the buckets exactly once", [&] { return str_cat("move ", i); });
}

}  // namespace hybridengine
