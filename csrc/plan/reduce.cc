// Plans from a partial layout.
//
// Vocabulary: equal boxes of the destination on several ranks form a *group*. Each element of a
// group gets one *owner* among its ranks; a group is cut row-major into *shares*, so that over the
// whole plan every rank owns as much as the others. A share is cut further where its contributors
// change, so that every element of a *part* has the same ones.
//
// Boxes of the destination that overlap without being equal (a rank that needs a whole tensor
// beside others that need halves of it): who comes first owns what they share.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "plan/plan.h"
#include "plan/quota.h"

namespace hybridengine {
namespace {

struct Share {
  int32_t tensor = 0;
  int32_t piece = 0;  // of the destination
  Box box;
};

/// What several destination pieces of one tensor have in common, and nobody before them.
struct Group {
  int32_t tensor = 0;
  std::vector<int32_t> pieces;  // ascending by rank
  std::vector<Box> boxes;       // disjoint, row-major
};

int64_t elem_bytes(Dtype dtype) { return static_cast<int64_t>(dtype_bytes(dtype)); }

class ReducingPlanner {
 public:
  ReducingPlanner(const LayoutPtr& src, const LayoutPtr& dst)
      : src_(src), dst_(dst), pairing_(pair_tensors(*src, *dst)) {
    for (const PairKind& kind : pairing_.kinds) check_once(kind.src_tensor);
    for (const TensorInfo& info : dst->spec().tensors()) check_reducible(src->op(), info.dtype);
    load_.assign(std::max(src->ranks().back(), dst->ranks().back()) + 1, 0);
  }

  PlanPtr run() {
    std::map<std::vector<Rank>, std::vector<Group>> by_ranks;
    for (int32_t tensor = 0; tensor < static_cast<int32_t>(dst_->spec().tensors().size()); ++tensor)
      for (Group& group : groups_of(tensor)) by_ranks[ranks_of(group)].push_back(std::move(group));
    std::vector<const decltype(by_ranks)::value_type*> order;
    for (const auto& entry : by_ranks) order.push_back(&entry);
    std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
      return a->first.size() < b->first.size();  // those with little choice first
    });
    for (const auto* entry : order) share_out(entry->first, entry->second);
    for (const Share& share : shares_) add_moves(share);
    order_moves();
    return std::make_shared<const Plan>(src_, dst_, std::move(moves_), pairing_);
  }

 private:
  std::vector<Group> groups_of(int32_t tensor) const {
    const std::span<const Piece> pieces = dst_->pieces_of(tensor);
    const auto first = static_cast<int32_t>(pieces.data() - dst_->pieces().data());
    std::vector<Group> groups;
    for (int32_t i = 0; i < static_cast<int32_t>(pieces.size()); ++i) {
      const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
        return dst_->pieces()[group.pieces.front()].box == pieces[i].box;
      });
      if (same != groups.end()) {
        // Twice on one rank: it is copied there as from another one.
        if (dst_->pieces()[same->pieces.back()].rank != pieces[i].rank)
          same->pieces.push_back(first + i);
        continue;
      }
      Group group{tensor, {first + i}, {pieces[i].box}};
      for (const Group& before : groups)
        subtract_from(group.boxes, dst_->pieces()[before.pieces.front()].box);
      groups.push_back(std::move(group));
    }
    return groups;
  }

  std::vector<Rank> ranks_of(const Group& group) const {
    std::vector<Rank> ranks;
    for (const int32_t piece : group.pieces) ranks.push_back(dst_->pieces()[piece].rank);
    return ranks;
  }

  Dtype src_dtype(int32_t tensor) const {
    return src_->spec().tensors()[pairing_.src_tensor[tensor]].dtype;
  }
  Dtype dst_dtype(int32_t tensor) const { return dst_->spec().tensors()[tensor].dtype; }

  void share_out(const std::vector<Rank>& ranks, const std::vector<Group>& groups) {
    int64_t total = 0;
    for (const Group& group : groups)
      for (const Box& box : group.boxes)
        total += box.num_elems() * elem_bytes(src_dtype(group.tensor));
    std::vector<int64_t> quota = level_quotas(load_, ranks, total);
    size_t owner = 0;
    std::vector<Box> todo, head, tail;  // todo in reverse order
    for (const Group& group : groups) {
      const int64_t bytes = elem_bytes(src_dtype(group.tensor));
      todo.assign(group.boxes.rbegin(), group.boxes.rend());
      while (!todo.empty()) {
        for (; quota[owner] <= 0 && owner + 1 < ranks.size(); ++owner)
          quota[owner + 1] += quota[owner];
        const int64_t elems = (quota[owner] + bytes - 1) / bytes;
        Box box = todo.back();
        todo.pop_back();
        if (elems < box.num_elems() && owner + 1 < ranks.size()) {
          head.clear();
          tail.clear();
          split_row_major(box, elems, head, tail);
          todo.insert(todo.end(), tail.rbegin(), tail.rend());
          todo.insert(todo.end(), head.rbegin(), head.rend());
          box = todo.back();
          todo.pop_back();
        }
        quota[owner] -= box.num_elems() * bytes;
        load_[ranks[owner]] += box.num_elems() * bytes;
        shares_.push_back({group.tensor, group.pieces[owner], box});
      }
    }
  }

  void add_moves(const Share& share) {
    const Piece& owned = dst_->pieces()[share.piece];
    Move move;
    move.tensor = share.tensor;
    for (const Box& part : parts_of(share)) {
      move.box = part;
      move.dst = owned.rank;
      move.dst_piece = share.piece;
      move.op = src_->op();
      move.step = 0;
      move.src_dtype = src_dtype(share.tensor);
      move.dst_dtype = dst_dtype(share.tensor);
      for (const Piece& piece : src_->pieces_of(pairing_.src_tensor[share.tensor])) {
        if (!piece.box.contains(part)) continue;
        move.src = piece.rank;
        move.src_piece = static_cast<int32_t>(&piece - src_->pieces().data());
        moves_.push_back(move);
      }
      move.op = Op::kCopy;
      move.step = 1;
      move.src = owned.rank;
      move.src_piece = share.piece;
      move.src_dtype = move.dst_dtype;
      for (const Piece& piece : dst_->pieces_of(share.tensor)) {
        const auto index = static_cast<int32_t>(&piece - dst_->pieces().data());
        move.box = intersect(piece.box, part);
        if (index == share.piece || move.box.empty()) continue;
        move.dst = piece.rank;
        move.dst_piece = index;
        moves_.push_back(move);
      }
    }
  }

  /// Contributions are counted by rank.
  void check_once(int32_t src_tensor) const {
    const std::span<const Piece> pieces = src_->pieces_of(src_tensor);
    for (size_t i = 1; i < pieces.size(); ++i)
      for (size_t j = i; j-- > 0 && pieces[j].rank == pieces[i].rank;)
        if (!intersect(pieces[i].box, pieces[j].box).empty())
          throw UsageError("a rank contributes twice to one element",
                           str_cat("'", src_->spec().tensors()[src_tensor].name, "' ",
                                   pieces[i].box.to_string(), " on rank ", pieces[i].rank),
                           "Leave one of its local tensors out of the layout.");
  }

  /// The share cut where a contribution begins or ends.
  std::vector<Box> parts_of(const Share& share) const {
    std::vector<Box> parts{share.box}, next;
    const Box* last = nullptr;
    for (const Piece& piece : src_->pieces_of(pairing_.src_tensor[share.tensor])) {
      if (last != nullptr && *last == piece.box) continue;
      last = &piece.box;
      next.clear();
      for (const Box& part : parts) {
        const Box common = intersect(part, piece.box);
        if (!common.empty()) next.push_back(common);
        if (common.empty())
          next.push_back(part);
        else if (common != part)
          subtract(part, common, next);
      }
      parts.swap(next);
    }
    return parts;
  }

  void order_moves() {
    using Key = std::tuple<uint8_t, Rank, int32_t, int64_t, Rank, int32_t>;
    const auto key = [&](const Move& move) {
      const Piece& piece = dst_->pieces()[move.dst_piece];
      return Key(move.step, move.dst, piece.local,
                 place_within(piece.place, piece.box, move.box).offset_elems, move.src,
                 move.src_piece);
    };
    std::vector<std::pair<Key, int32_t>> order;
    for (int32_t i = 0; i < static_cast<int32_t>(moves_.size()); ++i)
      order.emplace_back(key(moves_[i]), i);
    std::sort(order.begin(), order.end());
    Table<Move> ordered;
    ordered.reserve(moves_.size());
    for (const auto& [unused, index] : order) ordered.push_back(moves_[index]);
    moves_.swap(ordered);
  }

  LayoutPtr src_, dst_;
  Pairing pairing_;
  std::vector<int64_t> load_;  // bytes owned so far, by rank
  std::vector<Share> shares_;
  Table<Move> moves_;
};

}  // namespace

PlanPtr make_reducing_plan(const LayoutPtr& src, const LayoutPtr& dst) {
  return ReducingPlanner(src, dst).run();
}

}  // namespace hybridengine
