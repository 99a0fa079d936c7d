// The route of values that are copied: moves one after the other, in plan order, each cut where a
// bucket is full.
//
// With `in_order` a stretch is a *window*: at most bucket_bytes of what one destination rank
// receives, of one tensor or of several that are together no larger than that. Without, all that a
// destination receives is one stretch, and a pair's buckets depend on its own moves alone.
#include <algorithm>

#include "schedule/fuse.h"

namespace hybridengine {
namespace {

class CopiedRoute {
 public:
  CopiedRoute(const Plan& plan, Rank rank, const Table<Move>& own, int64_t bucket_bytes,
              bool in_order)
      : plan_(plan),
        rank_(rank),
        own_(own),
        bucket_bytes_(bucket_bytes),
        in_order_(in_order),
        fuser_(plan, rank, bucket_bytes) {}

  std::vector<Bucket> run() {
    const auto num_moves = static_cast<int32_t>(own_.size());
    for (int32_t begin = 0, end; begin < num_moves; begin = end) {
      for (end = begin; end < num_moves && own_[end].dst == own_[begin].dst;) ++end;
      begin_destination(own_[begin].dst);
      if (in_order_ && own_[begin].dst != rank_)
        add_among_others(begin);
      else
        for (int32_t i = begin; i < end; ++i) add_move(own_[i], i);
    }
    return fuser_.finish();
  }

 private:
  /// Windows depend on all that a destination receives, so the moves of its other sources are
  /// followed too.
  void add_among_others(int32_t next_own) {
    const Table<Move> arrivals = plan_.arrivals_of(own_[next_own].dst);
    for (const Move& move : arrivals) add_move(move, move.src == rank_ ? next_own++ : -1);
  }

  void begin_destination(Rank dst) {
    fuser_.begin_destination(dst);
    in_window_bytes_ = window_tensor_bytes_ = 0;
    last_local_ = -1;
  }

  void add_move(const Move& move, int32_t index) {
    if (move.local()) return;
    const auto elem_bytes = static_cast<int64_t>(dtype_bytes(move.wire()));
    int64_t offset = 0;
    fuser_.cut(
        move.box,
        [&] {
          enter_window(move, elem_bytes);
          offset = fuser_.make_room(move, 1);
          return std::min(bucket_bytes_ - offset, bucket_bytes_ - in_window_bytes_) / elem_bytes;
        },
        [&](const Box& box) {
          fuser_.append(move, index, box, offset);
          if (in_order_) in_window_bytes_ += box.num_elems() * elem_bytes;
        });
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
    fuser_.begin_stretch();
    in_window_bytes_ = 0;
    window_tensor_bytes_ = local_bytes(local);
  }

  const Plan& plan_;
  const Rank rank_;
  const Table<Move>& own_;
  const int64_t bucket_bytes_;
  const bool in_order_;
  Fuser fuser_;
  int64_t in_window_bytes_ = 0;      // received
  int64_t window_tensor_bytes_ = 0;  // of the tensors that it belongs to
  int32_t last_local_ = -1;          // the latest of them
};

}  // namespace

std::vector<Bucket> fuse_copied(const Plan& plan, Rank rank, const Table<Move>& moves,
                                int64_t bucket_bytes, bool in_order) {
  return CopiedRoute(plan, rank, moves, bucket_bytes, in_order).run();
}

}  // namespace hybridengine
