// Plans from a partial layout.
//
// Vocabulary: each element has one *owner* among the ranks that need it (layout/owners.h); what it
// owns in one of its pieces is a *share*. A share is cut where its contributors change, so that
// every element of a *part* has the same ones.
#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "layout/owners.h"
#include "plan/plan.h"

namespace hybridengine {
namespace {

struct Share {
  int32_t tensor = 0;
  int32_t piece = 0;  // of the destination
  Box box;
};

class ReducingPlanner {
 public:
  ReducingPlanner(const LayoutPtr& src, const LayoutPtr& dst)
      : src_(src), dst_(dst), pairing_(pair_tensors(*src, *dst)) {
    for (const PairKind& kind : pairing_.kinds) check_once(kind.src_tensor);
    for (const TensorInfo& info : dst->spec().tensors()) check_reducible(src->op(), info.dtype);
  }

  PlanPtr run() {
    for (const OwnedBox& owned : owned_boxes(*dst_, dst_->spec())) add_shares(owned);
    order_moves();
    return std::make_shared<const Plan>(src_, dst_, std::move(moves_), pairing_);
  }

 private:
  Dtype src_dtype(int32_t tensor) const {
    return src_->spec().tensors()[pairing_.src_tensor[tensor]].dtype;
  }
  Dtype dst_dtype(int32_t tensor) const { return dst_->spec().tensors()[tensor].dtype; }

  /// What a rank owns lies in one or several of its pieces.
  void add_shares(const OwnedBox& owned) {
    std::vector<Box> todo{owned.box};
    for (const Piece& piece : dst_->pieces_of(owned.tensor)) {
      if (piece.rank != owned.rank) continue;
      const std::vector<Box> left = todo;
      for (const Box& box : left) {
        const Box common = intersect(box, piece.box);
        if (common.empty()) continue;
        add_moves({owned.tensor, static_cast<int32_t>(&piece - dst_->pieces().data()), common});
        subtract_from(todo, common);
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
  Table<Move> moves_;
};

}  // namespace

PlanPtr make_reducing_plan(const LayoutPtr& src, const LayoutPtr& dst) {
  return ReducingPlanner(src, dst).run();
}

}  // namespace hybridengine
