#include "schedule/fuse_gates.h"

#include <algorithm>
#include <tuple>

#include "plan/route.h"
#include "schedule/rounds.h"

namespace hybridengine {
namespace {

int64_t aligned(int64_t offset, int64_t elem_bytes) {
  return (offset + elem_bytes - 1) / elem_bytes * elem_bytes;
}

class GateFuser {
 public:
  GateFuser(const Plan& plan, Rank rank, const Table<Move>& moves, int64_t bucket_bytes)
      : plan_(plan),
        rank_(rank),
        moves_(moves),
        rounds_(plan.certificate().ranks),
        bucket_bytes_(bucket_bytes) {
    const auto others = std::max<int64_t>(1, plan.certificate().ranks.size() - 1);
    group_bytes_ = std::max(bucket_bytes / others, plan.widest_elem_bytes());
    for (int32_t i = 0; i < num_moves(); ++i)
      if (moves_[i].step == 1) copies_[moves_[i].src_piece].push_back(i);
  }

  std::vector<Bucket> run() {
    const OwnedPart* last = nullptr;
    const std::vector<OwnedPart> parts = owned_parts(plan_);
    for (const OwnedPart& part : parts) {
      if (last == nullptr || last->owner != part.owner) turn_ = -1;
      if (turn_ < 0) open_group(part.owner);
      last = &part;
      const int32_t begin = next_;
      while (next_ < num_moves() && contributes_to(moves_[next_], part)) ++next_;
      add_part(part, begin, next_);
    }
    return std::move(buckets_);
  }

 private:
  int32_t num_moves() const { return static_cast<int32_t>(moves_.size()); }

  static bool contributes_to(const Move& move, const OwnedPart& part) {
    return move.step == 0 && move.dst_piece == part.dst_piece && move.box == part.box;
  }

  /// As wide as the wider end, so that neither step's buckets grow beyond their size.
  int64_t elem_bytes(const OwnedPart& part) const {
    const int32_t tensor = plan_.dst().pieces()[part.dst_piece].tensor;
    const int32_t src_tensor = plan_.pairing().src_tensor[tensor];
    return static_cast<int64_t>(
        std::max(dtype_bytes(plan_.src().spec().tensors()[src_tensor].dtype),
                 dtype_bytes(plan_.dst().spec().tensors()[tensor].dtype)));
  }

  void open_group(Rank owner) {
    ++turn_;
    if (owner == rank_) ++gate_;
    used_bytes_ = 0;
    open_.clear();
  }

  /// Moves [begin, end) are this rank's contributions to the part, or those to this rank.
  void add_part(const OwnedPart& part, int32_t begin, int32_t end) {
    const int64_t bytes = elem_bytes(part);
    std::vector<Box> todo{part.box};  // in reverse order
    while (!todo.empty()) {
      const int64_t room = (group_bytes_ - aligned(used_bytes_, bytes)) / bytes;
      if (room <= 0) {
        open_group(part.owner);
        continue;
      }
      if (todo.back().num_elems() > room) {
        split_last(room, todo);
        continue;
      }
      const Box box = todo.back();
      todo.pop_back();
      used_bytes_ = aligned(used_bytes_, bytes);
      for (int32_t i = begin; i < end; ++i) append(i, box);
      append_copies(part, box);
      used_bytes_ += box.num_elems() * bytes;
    }
  }

  Bucket& bucket_of(const Move& move) {
    const auto [entry, fresh] = open_.try_emplace({move.step, move.src, move.dst}, buckets_.size());
    if (fresh) {
      const bool folds = move.step == 0 && move.dst == rank_;
      const bool waits = move.step == 1 && move.src == rank_;
      buckets_.push_back({.src = move.src,
                          .dst = move.dst,
                          .step = move.step,
                          .plain = move.step == 1,
                          .round = rounds_.round_of(turn_, move.src, move.dst, group_bytes_),
                          .gate = waits ? gate_ : -1,
                          .feeds = folds ? gate_ : -1,
                          .items = {}});
    }
    return buckets_[entry->second];
  }

  /// Contributions lie where they lie in all buckets of the group.
  void append(int32_t index, const Box& box) {
    Bucket& bucket = bucket_of(moves_[index]);
    bucket.items.push_back({index, used_bytes_, box});
    bucket.num_bytes = used_bytes_ + item_bytes(moves_[index], bucket.items.back());
  }

  void append_copies(const OwnedPart& part, const Box& box) {
    const auto found = copies_.find(part.dst_piece);
    if (found == copies_.end()) return;
    for (const int32_t copy : found->second) {
      const Box common = intersect(moves_[copy].box, box);
      if (!common.empty()) append_copy(copy, common);
    }
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
  const Rank rank_;
  const Table<Move>& moves_;
  const Rounds rounds_;
  const int64_t bucket_bytes_;
  int64_t group_bytes_ = 0;
  std::map<int32_t, std::vector<int32_t>> copies_;  // moves of step 1, by the piece that they read
  std::map<std::tuple<uint8_t, Rank, Rank>, size_t> open_;  // buckets of the current group
  int32_t next_ = 0;                                        // move of step 0
  int32_t turn_ = -1, gate_ = -1;
  int64_t used_bytes_ = 0;
  std::vector<Bucket> buckets_;
};

}  // namespace

std::vector<Bucket> fuse_with_gates(const Plan& plan, Rank rank, const Table<Move>& moves,
                                    int64_t bucket_bytes) {
  return GateFuser(plan, rank, moves, bucket_bytes).run();
}

}  // namespace hybridengine
