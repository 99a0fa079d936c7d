// Cutting and fusing the moves of a plan that reduces.
//
// Every owner's stretch of the destination is cut into groups, in its order, and every group fits
// into one bucket with the contributions of all others side by side: memory for staging does not
// grow with the number of ranks. All buckets of a group place the same part at the same offset,
// whether or not they have it.
//
// Rounds: a bucket of an owner's k-th group travels in round k * ranks + distance, in either step.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "schedule/schedule.h"

namespace hybridengine {
namespace {

int64_t aligned(int64_t offset, int64_t elem_bytes) {
  return (offset + elem_bytes - 1) / elem_bytes * elem_bytes;
}

class GroupFuser {
 public:
  GroupFuser(const Plan& plan, int64_t bucket_bytes)
      : plan_(plan),
        moves_(plan.moves()),
        ranks_(plan.certificate().ranks),
        bucket_bytes_(bucket_bytes) {
    for (int32_t i = 0; i < static_cast<int32_t>(ranks_.size()); ++i) index_[ranks_[i].rank] = i;
    int64_t widest = 1;
    for (const Move& move : moves_) widest = std::max(widest, elem_bytes(move));
    const auto others = std::max<int64_t>(1, static_cast<int64_t>(ranks_.size()) - 1);
    group_bytes_ = std::max(bucket_bytes / others, widest);
  }

  std::vector<Bucket> run() {
    for (int32_t i = 0; i < num_moves(); ++i)
      if (moves_[i].step == 1) copies_[moves_[i].src_piece].push_back(i);
    for (int32_t begin = 0, end; begin < num_moves() && moves_[begin].step == 0; begin = end) {
      for (end = begin; end < num_moves() && same_part(moves_[begin], moves_[end]);) ++end;
      if (begin == 0 || moves_[begin].dst != moves_[begin - 1].dst) turn_ = -1;
      if (turn_ < 0) open_group();
      add_part(begin, end);
    }
    return std::move(buckets_);
  }

 private:
  int32_t num_moves() const { return static_cast<int32_t>(moves_.size()); }

  /// As wide as the wider end, so that neither step's buckets grow beyond their size.
  static int64_t elem_bytes(const Move& move) {
    return static_cast<int64_t>(std::max(dtype_bytes(move.src_dtype), dtype_bytes(move.dst_dtype)));
  }

  static bool same_part(const Move& a, const Move& b) {
    return a.step == b.step && a.dst_piece == b.dst_piece && a.box == b.box;
  }

  void open_group() {
    ++turn_;
    ++group_;
    used_bytes_ = 0;
    open_.clear();
  }

  /// Moves [begin, end) are the contributions to one box.
  void add_part(int32_t begin, int32_t end) {
    const int64_t bytes = elem_bytes(moves_[begin]);
    std::vector<Box> todo{moves_[begin].box}, head, tail;  // in reverse order
    while (!todo.empty()) {
      int64_t room = (group_bytes_ - aligned(used_bytes_, bytes)) / bytes;
      if (room <= 0) {
        open_group();
        continue;
      }
      Box box = todo.back();
      todo.pop_back();
      if (box.num_elems() > room) {
        head.clear();
        tail.clear();
        split_row_major(box, room, head, tail);
        todo.insert(todo.end(), tail.rbegin(), tail.rend());
        todo.insert(todo.end(), head.rbegin(), head.rend());
        continue;
      }
      used_bytes_ = aligned(used_bytes_, bytes);
      for (int32_t i = begin; i < end; ++i)
        append(i, box, static_cast<int64_t>(dtype_bytes(moves_[i].wire())));
      for (const int32_t copy : copies_[moves_[begin].dst_piece]) {
        const Box common = intersect(moves_[copy].box, box);
        if (!common.empty()) append_copy(copy, common);
      }
      used_bytes_ += box.num_elems() * bytes;
    }
  }

  Bucket& bucket_of(const Move& move) {
    const auto [entry, fresh] = open_.try_emplace({move.step, move.src, move.dst}, 0);
    if (fresh) {
      entry->second = buckets_.size();
      const auto num_ranks = static_cast<int32_t>(ranks_.size());
      const int32_t distance = (index_.at(move.dst) - index_.at(move.src) + num_ranks) % num_ranks;
      int32_t round = 0;
      if (__builtin_mul_overflow(turn_, num_ranks, &round) ||
          __builtin_add_overflow(round, distance, &round))
        throw UsageError("a schedule has more rounds than 31 bits count",
                         str_cat(turn_, " groups of ", group_bytes_, " bytes on one rank"),
                         "Use larger buckets.");
      buckets_.push_back({.src = move.src,
                          .dst = move.dst,
                          .step = move.step,
                          .direct = move.step == 1,
                          .round = round,
                          .group = group_,
                          .items = {}});
    }
    return buckets_[entry->second];
  }

  /// Contributions lie where they lie in all buckets of the group.
  void append(int32_t index, const Box& box, int64_t wire_bytes) {
    Bucket& bucket = bucket_of(moves_[index]);
    bucket.items.push_back({index, used_bytes_, box});
    bucket.num_bytes = used_bytes_ + box.num_elems() * wire_bytes;
  }

  /// A rank that wants an element more than once gets more than a group holds: the rest goes into
  /// another bucket of the group.
  void append_copy(int32_t index, const Box& box) {
    const Move& move = moves_[index];
    const auto bytes = static_cast<int64_t>(dtype_bytes(move.wire()));
    const int64_t used = bucket_of(move).num_bytes;
    if (used > 0 && aligned(used, bytes) + box.num_elems() * bytes > bucket_bytes_)
      open_.erase({move.step, move.src, move.dst});
    Bucket& bucket = bucket_of(move);
    const int64_t offset = aligned(bucket.num_bytes, bytes);
    bucket.items.push_back({index, offset, box});
    bucket.num_bytes = offset + box.num_elems() * bytes;
  }

  const Plan& plan_;
  const Table<Move>& moves_;
  const std::vector<RankBytes>& ranks_;
  std::map<Rank, int32_t> index_;
  std::map<int32_t, std::vector<int32_t>> copies_;  // moves of step 1, by the piece that they read
  const int64_t bucket_bytes_;
  int64_t group_bytes_ = 0;
  std::map<std::tuple<uint8_t, Rank, Rank>, size_t> open_;  // buckets of the current group
  int32_t group_ = -1, turn_ = -1;
  int64_t used_bytes_ = 0;
  std::vector<Bucket> buckets_;
};

}  // namespace

std::vector<Bucket> fuse_reducing(const Plan& plan, int64_t bucket_bytes) {
  return GroupFuser(plan, bucket_bytes).run();
}

}  // namespace hybridengine
