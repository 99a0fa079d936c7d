// Cutting and fusing what one rank has a part in into buckets.
//
// Vocabulary: each ordered pair of ranks has at most one *open* bucket; moves are appended
// in plan order and cut where the bucket is full. With `in_order` a bucket also ends where its
// *window* does, so that nothing of a later window arrives in it: a window is a stretch of at most
// bucket_bytes of what one destination rank receives, in plan order, and belongs to one tensor or
// to several that are together no larger than that. Without, there is one window, and a pair's
// buckets depend on its own moves alone. A window's first turn (schedule/rounds.h) is after all
// turns of the window before.
#include <algorithm>

#include "base/error.h"
#include "schedule/fuse_gates.h"
#include "schedule/rounds.h"
#include "schedule/schedule.h"

namespace hybridengine {
namespace {

/// What one destination receives; this rank is the destination or one of the sources.
class Fuser {
 public:
  Fuser(const Plan& plan, Rank rank, const Table<Move>& own, int64_t bucket_bytes, bool in_order)
      : plan_(plan),
        rank_(rank),
        own_(own),
        rounds_(plan.certificate().ranks),
        bucket_bytes_(bucket_bytes),
        in_order_(in_order) {}

  std::vector<Bucket> run() {
    const auto num_moves = static_cast<int32_t>(own_.size());
    for (int32_t begin = 0, end; begin < num_moves; begin = end) {
      for (end = begin; end < num_moves && own_[end].dst == own_[begin].dst;) ++end;
      begin_destination();
      if (in_order_ && own_[begin].dst != rank_)
        fuse_among_others(begin);
      else
        for (int32_t i = begin; i < end; ++i) add_move(own_[i], i);
    }
    begin_destination();
    return std::move(buckets_);
  }

 private:
  struct Open {
    int64_t used_bytes = -1;  // -1: there is no open bucket
    int64_t window = 0;
    int32_t turn = 0;
    int32_t bucket = -1;      // index into buckets_, of those of this rank
    std::vector<Item> items;  // of the bucket, which takes just the room they need when it closes
  };

  /// Windows depend on all that a destination receives, so the moves of its other sources are
  /// followed too, and dropped again.
  void fuse_among_others(int32_t next_own) {
    const Table<Move> arrivals = plan_.arrivals_of(own_[next_own].dst);
    for (const Move& move : arrivals) add_move(move, move.src == rank_ ? next_own++ : -1);
  }

  void begin_destination() {
    for (auto& [unused, open] : open_) close(open);
    open_.clear();
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

  void add_move(const Move& move, int32_t own) {
    if (move.local()) return;
    const auto elem_bytes = static_cast<int64_t>(dtype_bytes(move.wire()));
    Open& open = open_[move.src];
    todo_.assign(1, move.box);  // in reverse order
    while (!todo_.empty()) {
      int64_t offset = 0;
      const int64_t room = room_for(move, elem_bytes, own >= 0, open, offset);
      if (todo_.back().num_elems() > room) split_last(room, todo_);
      // What was split off may come as several boxes; the window moves on with each.
      append(move, own, todo_.back(), offset, elem_bytes, open);
      todo_.pop_back();
    }
  }

  /// Elements that still fit into the open bucket of the move's pair, at least 1; opens a new
  /// bucket where none does.
  int64_t room_for(const Move& move, int64_t elem_bytes, bool own, Open& open, int64_t& offset) {
    enter_window(move, elem_bytes);
    for (;;) {
      if (open.used_bytes >= 0 && open.window == window_) {
        const int64_t used = open.used_bytes;
        offset = used + (elem_bytes - used % elem_bytes) % elem_bytes;
        const int64_t room =
            std::min(bucket_bytes_ - offset, bucket_bytes_ - in_window_bytes_) / elem_bytes;
        if (room > 0) return room;
      }
      open_bucket(move, own, open);
    }
  }

  void open_bucket(const Move& move, bool own, Open& open) {
    const bool follows = open.used_bytes >= 0 && open.window == window_;
    open.turn = follows ? open.turn + 1 : first_turn_;
    next_turn_ = std::max(next_turn_, open.turn + 1);
    close(open);
    open.used_bytes = 0;
    open.window = window_;
    if (!own) return;
    open.bucket = static_cast<int32_t>(buckets_.size());
    buckets_.push_back({.src = move.src,
                        .dst = move.dst,
                        .plain = true,
                        .round = rounds_.round_of(open.turn, move.src, move.dst, bucket_bytes_),
                        .items = {}});
  }

  void close(Open& open) {
    if (open.bucket >= 0) {
      buckets_[open.bucket].items.assign(open.items.begin(), open.items.end());
      buckets_[open.bucket].num_bytes = open.used_bytes;
    }
    open.items.clear();
    open.bucket = -1;
    open.used_bytes = -1;
  }

  void append(const Move& move, int32_t own, const Box& box, int64_t offset, int64_t elem_bytes,
              Open& open) {
    const int64_t bytes = box.num_elems() * elem_bytes;
    open.used_bytes = offset + bytes;
    if (in_order_) in_window_bytes_ += bytes;
    if (own < 0) return;
    open.items.push_back({own, offset, box});
    Bucket& bucket = buckets_[open.bucket];
    bucket.plain = bucket.plain && move.codec == Codec::kNone && move.src_dtype == move.dst_dtype;
  }

  const Plan& plan_;
  const Rank rank_;
  const Table<Move>& own_;
  const Rounds rounds_;
  const int64_t bucket_bytes_;
  const bool in_order_;
  // Of the destination whose moves are being fused:
  std::map<Rank, Open> open_;  // by source
  int64_t window_ = 0;
  int64_t in_window_bytes_ = 0;      // received
  int64_t window_tensor_bytes_ = 0;  // of the tensors that it belongs to
  int32_t last_local_ = -1;          // the latest of them
  int32_t first_turn_ = 0, next_turn_ = 0;
  std::vector<Box> todo_;
  std::vector<Bucket> buckets_;
};

}  // namespace

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
                                    ? fuse_with_gates(*plan, rank, moves, bucket_bytes)
                                    : Fuser(*plan, rank, moves, bucket_bytes, in_order).run();
  return std::make_shared<const Schedule>(plan, rank, bucket_bytes, in_order, std::move(moves),
                                          std::move(buckets));
}

}  // namespace hybridengine
