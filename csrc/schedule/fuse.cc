// Cutting and fusing moves into buckets.
//
// Vocabulary: each ordered pair of ranks has at most one *open* bucket; moves are appended
// in plan order and cut where the bucket is full. With `in_order` a bucket also ends where its
// *window* does, so that nothing of a later window arrives in it: a window is a stretch of at most
// bucket_bytes of what one destination rank receives, in plan order, and belongs to one tensor or
// to several that are together no larger than that. Without, there is one window.
//
// Rounds: the buckets of a pair take *turns* 0, 1, ..., and a window's first turn is after all
// turns of the window before. A bucket travels in round turn * ranks + (distance from source to
// destination), so in one round the pairs form partial matchings and no two destinations start with
// the same source.
#include <algorithm>

#include "base/error.h"
#include "schedule/schedule.h"

namespace hybridengine {
namespace {

/// Moves come ordered by destination, so the state is that of one destination.
class Fuser {
 public:
  Fuser(const Plan& plan, int64_t bucket_bytes, bool in_order)
      : plan_(plan), bucket_bytes_(bucket_bytes), in_order_(in_order) {
    const std::vector<RankBytes>& rows = plan.certificate().ranks;
    index_.resize(rows.empty() ? 0 : rows.back().rank + 1);
    for (size_t i = 0; i < rows.size(); ++i) index_[rows[i].rank] = static_cast<int32_t>(i);
    num_ranks_ = static_cast<int32_t>(rows.size());
    open_.resize(num_ranks_);
  }

  std::vector<Bucket> run() {
    const Table<Move>& moves = plan_.moves();
    for (int32_t i = 0; i < static_cast<int32_t>(moves.size()); ++i) {
      if (i == 0 || moves[i].dst != moves[i - 1].dst) begin_destination();
      if (!moves[i].local()) add_move(i);
    }
    begin_destination();
    return std::move(buckets_);
  }

 private:
  struct Open {
    int32_t bucket = -1;
    int64_t window = 0;
    int32_t turn = 0;
    std::vector<Item> items;  // of the bucket, which takes just the room they need when it closes
  };

  void begin_destination() {
    for (Open& open : open_) {
      close(open);
      open.window = open.turn = 0;
    }
    window_ = first_turn_ = next_turn_ = 0;
    in_window_bytes_ = window_tensor_bytes_ = 0;
    last_local_ = -1;
  }

  int64_t local_bytes(int32_t local) const {
    const LocalTensor& tensor = plan_.dst().locals()[local];
    return tensor.shape.num_elems() * static_cast<int64_t>(dtype_bytes(tensor.dtype));
  }

  /// In order only: leaves the window where the next element, or the next tensor, does not fit.
  void enter_window(const Move& move, int64_t elem_bytes) {
    if (!in_order_) return;
    const int32_t local = plan_.dst_local(move);
    int64_t joining = 0;  // with the tensors between, which wait for their turn too
    for (int32_t i = last_local_ < 0 ? local : last_local_ + 1; i <= local; ++i)
      joining += local_bytes(i);
    const bool crowded =
        joining > 0 && window_tensor_bytes_ > 0 && window_tensor_bytes_ + joining > bucket_bytes_;
    last_local_ = local;
    window_tensor_bytes_ += joining;
    if (!crowded && in_window_bytes_ + elem_bytes <= bucket_bytes_) return;
    ++window_;
    first_turn_ = next_turn_;
    in_window_bytes_ = 0;
    window_tensor_bytes_ = local_bytes(local);
  }

  void add_move(int32_t index) {
    const Move& move = plan_.moves()[index];
    const auto elem_bytes = static_cast<int64_t>(dtype_bytes(move.wire()));
    Open& open = open_[index_[move.src]];
    int64_t offset = 0;
    int64_t room = room_for(move, elem_bytes, open, offset);
    if (move.box.num_elems() <= room) return append(index, move.box, offset, elem_bytes, open);
    todo_.assign(1, move.box);  // in reverse order
    while (!todo_.empty()) {
      const Box box = todo_.back();
      todo_.pop_back();
      room = room_for(move, elem_bytes, open, offset);
      if (box.num_elems() <= room) {
        append(index, box, offset, elem_bytes, open);
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
  int64_t room_for(const Move& move, int64_t elem_bytes, Open& open, int64_t& offset) {
    enter_window(move, elem_bytes);
    for (;;) {
      if (open.bucket >= 0 && open.window == window_) {
        const int64_t used = buckets_[open.bucket].num_bytes;
        offset = used + (elem_bytes - used % elem_bytes) % elem_bytes;
        const int64_t room =
            std::min(bucket_bytes_ - offset, bucket_bytes_ - in_window_bytes_) / elem_bytes;
        if (room > 0) return room;
      }
      open_bucket(move, open);
    }
  }

  void open_bucket(const Move& move, Open& open) {
    const bool follows = open.bucket >= 0 && open.window == window_;
    open.turn = follows ? open.turn + 1 : first_turn_;
    next_turn_ = std::max(next_turn_, open.turn + 1);
    close(open);
    Bucket bucket{.src = move.src, .dst = move.dst, .direct = true, .items = {}};
    const int32_t distance = (index_[move.dst] - index_[move.src] + num_ranks_) % num_ranks_;
    if (__builtin_mul_overflow(open.turn, num_ranks_, &bucket.round) ||
        __builtin_add_overflow(bucket.round, distance, &bucket.round))
      throw UsageError(
          "a schedule has more rounds than 31 bits count",
          str_cat(open.turn, " buckets of ", bucket_bytes_, " bytes between two ranks"),
          "Use larger buckets.");
    open.bucket = static_cast<int32_t>(buckets_.size());
    open.window = window_;
    buckets_.push_back(std::move(bucket));
  }

  void close(Open& open) {
    if (open.bucket >= 0) buckets_[open.bucket].items.assign(open.items.begin(), open.items.end());
    open.items.clear();
    open.bucket = -1;
  }

  void append(int32_t index, const Box& box, int64_t offset, int64_t elem_bytes, Open& open) {
    const Move& move = plan_.moves()[index];
    Bucket& bucket = buckets_[open.bucket];
    const int64_t bytes = box.num_elems() * elem_bytes;
    open.items.push_back({index, offset, box});
    bucket.num_bytes = offset + bytes;
    bucket.direct = bucket.direct && move.codec == Codec::kNone && move.src_dtype == move.dst_dtype;
    if (in_order_) in_window_bytes_ += bytes;
  }

  const Plan& plan_;
  const int64_t bucket_bytes_;
  const bool in_order_;
  int32_t num_ranks_ = 0;
  std::vector<int32_t> index_;  // of a rank among those of the plan
  // Of the destination whose moves are being fused:
  std::vector<Open> open_;  // by index of the source
  int64_t window_ = 0;
  int64_t in_window_bytes_ = 0;      // received
  int64_t window_tensor_bytes_ = 0;  // of the tensors that it belongs to
  int32_t last_local_ = -1;          // the latest of them
  int32_t first_turn_ = 0, next_turn_ = 0;
  std::vector<Box> todo_, head_, tail_;
  std::vector<Bucket> buckets_;
};

int64_t widest_elem(const Plan& plan) {
  int64_t widest = 1;
  for (const Move& move : plan.moves())
    widest = std::max(widest, static_cast<int64_t>(dtype_bytes(move.wire())));
  return widest;
}

}  // namespace

SchedulePtr make_schedule(const PlanPtr& plan, int64_t bucket_bytes, bool in_order) {
  const int64_t widest = widest_elem(*plan);
  if (bucket_bytes < widest)
    throw UsageError(
        "a bucket cannot hold one element",
        str_cat("bucket_bytes is ", bucket_bytes, ", the widest element has ", widest, " bytes"),
        str_cat("Use a positive size; the default is ", kDefaultBucketBytes, "."));
  std::vector<Bucket> buckets = plan->reduces() ? fuse_reducing(*plan, bucket_bytes)
                                                : Fuser(*plan, bucket_bytes, in_order).run();
  return std::make_shared<const Schedule>(plan, bucket_bytes, std::move(buckets));
}

}  // namespace hybridengine
