// The route of contributions that are combined, and of what comes out of them.
//
// Here a stretch is a *group*: a part of what one rank owns, in its order, that fits into one
// bucket with the contributions of all others side by side, so memory for staging does not grow
// with the number of ranks. All contributions of a group place the same part at the same offset,
// whether or not their ranks have it. On the owner a group is a gate.
#include <algorithm>
#include <map>

#include "plan/route.h"
#include "schedule/fuse.h"

namespace hybridengine {
namespace {

class CombinedRoute {
 public:
  CombinedRoute(const Plan& plan, Rank rank, const Table<Move>& moves, int64_t bucket_bytes)
      : plan_(plan), moves_(moves), fuser_(plan, rank, bucket_bytes) {
    const auto others = std::max<int64_t>(1, plan.certificate().ranks.size() - 1);
    group_bytes_ = std::max(bucket_bytes / others, plan.widest_elem_bytes());
    for (int32_t i = 0; i < num_moves(); ++i)
      if (moves_[i].step == 1) copies_[moves_[i].src_piece].push_back(i);
  }

  std::vector<Bucket> run() {
    const std::vector<OwnedPart> parts = owned_parts(plan_);
    for (size_t i = 0; i < parts.size(); ++i) {
      const OwnedPart& part = parts[i];
      if (i == 0 || parts[i - 1].owner != part.owner) {
        fuser_.begin_destination(part.owner);
        used_bytes_ = 0;
      }
      const int32_t begin = next_;
      while (next_ < num_moves() && contributes_to(moves_[next_], part)) ++next_;
      add_part(part, begin, next_);
    }
    return fuser_.finish();
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

  /// Moves [begin, end) are this rank's contributions to the part, or those to this rank.
  void add_part(const OwnedPart& part, int32_t begin, int32_t end) {
    const int64_t bytes = elem_bytes(part);
    fuser_.cut(
        part.box, [&] { return make_room(bytes); },
        [&](const Box& box) {
          for (int32_t i = begin; i < end; ++i) fuser_.append(moves_[i], i, box, used_bytes_);
          append_copies(part, box);
          used_bytes_ += box.num_elems() * bytes;
        });
  }

  /// Elements that still fit into the group; begins another one where none does.
  int64_t make_room(int64_t bytes) {
    used_bytes_ = aligned(used_bytes_, bytes);
    if (group_bytes_ - used_bytes_ < bytes) {
      fuser_.begin_stretch();
      used_bytes_ = 0;
    }
    return (group_bytes_ - used_bytes_) / bytes;
  }

  /// A rank that wants an element more than once gets more than a group holds: the rest goes into
  /// another bucket of the group.
  void append_copies(const OwnedPart& part, const Box& box) {
    const auto found = copies_.find(part.dst_piece);
    if (found == copies_.end()) return;
    for (const int32_t i : found->second) {
      const Box common = intersect(moves_[i].box, box);
      if (common.empty()) continue;
      fuser_.append(moves_[i], i, common, fuser_.make_room(moves_[i], common.num_elems()));
    }
  }

  const Plan& plan_;
  const Table<Move>& moves_;
  Fuser fuser_;
  int64_t group_bytes_ = 0;
  int64_t used_bytes_ = 0;                          // of the group
  std::map<int32_t, std::vector<int32_t>> copies_;  // moves of step 1, by the piece that they read
  int32_t next_ = 0;                                // move of step 0
};

}  // namespace

std::vector<Bucket> fuse_combined(const Plan& plan, Rank rank, const Table<Move>& moves,
                                  int64_t bucket_bytes) {
  return CombinedRoute(plan, rank, moves, bucket_bytes).run();
}

}  // namespace hybridengine
