// The planner.
//
// Vocabulary: source boxes that are equal form an *atom*, held by one or more *holders* (replicas).
// What a destination piece still needs once its own rank's source pieces are taken out is cut along
// the atoms into *demands*; a demand can be served by any holder of its atom. Demands of the same
// holders are shared out so that, over the whole plan, every holder sends as much as the others:
// small holder sets first (they have no choice), each larger set then fills up its least loaded
// members (water-filling). A demand is cut where a holder's share ends, so at most one demand per
// holder and set is cut.
//
// Source boxes that overlap without being equal are served first come, first served: every byte
// still moves once, but balance only sees equal boxes.
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "plan/plan.h"

namespace hybridengine {
namespace {

struct Atom {
  Box box;
  std::vector<int32_t> pieces;  // of the source layout, one per holder
  int32_t holder_set = 0;
};

struct Demand {
  Move move;                    // src and src_piece are open
  std::vector<int32_t> pieces;  // one per holder, in the order of the holder set
};

class Planner {
 public:
  Planner(const LayoutPtr& src, const LayoutPtr& dst)
      : src_(src), dst_(dst), src_tensor_(match_tensors(*src, *dst)) {}

  PlanPtr run() {
    for (int32_t tensor = 0; tensor < static_cast<int32_t>(src_tensor_.size()); ++tensor) {
      find_atoms(tensor);
      for (const Piece& piece : dst_->pieces_of(tensor)) serve(piece);
    }
    share_out();
    order_moves();
    return std::make_shared<const Plan>(src_, dst_, std::move(moves_));
  }

 private:
  int32_t holder_set_of(const std::vector<int32_t>& pieces) {
    std::vector<Rank> holders;
    for (const int32_t piece : pieces) holders.push_back(src_->pieces()[piece].rank);
    return set_index_.emplace(std::move(holders), static_cast<int32_t>(set_index_.size()))
        .first->second;
  }

  void find_atoms(int32_t tensor) {
    atoms_.clear();
    src_pieces_ = src_->pieces_of(src_tensor_[tensor]);
    const auto base = static_cast<int32_t>(src_pieces_.data() - src_->pieces().data());
    std::map<std::pair<Dims, Dims>, size_t> index;
    for (int32_t i = 0; i < static_cast<int32_t>(src_pieces_.size()); ++i) {
      const Piece& piece = src_pieces_[i];
      const auto [entry, fresh] =
          index.emplace(std::pair(piece.box.start, piece.box.size), atoms_.size());
      if (fresh) atoms_.push_back({piece.box, {}, 0});
      std::vector<int32_t>& pieces = atoms_[entry->second].pieces;
      // A rank may hold a box twice; one place is enough.
      if (pieces.empty() || src_->pieces()[pieces.back()].rank != piece.rank)
        pieces.push_back(base + i);
    }
    for (Atom& atom : atoms_) atom.holder_set = holder_set_of(atom.pieces);
  }

  /// Takes `from` out of every box in missing_, calling `found(part)` on what it takes.
  template <class Found>
  void take_out(const Box& from, const Found& found) {
    next_.clear();
    for (const Box& box : missing_) {
      const Box common = intersect(box, from);
      if (common.empty()) {
        next_.push_back(box);
        continue;
      }
      found(common);
      subtract(box, common, next_);
    }
    missing_.swap(next_);
  }

  void serve(const Piece& piece) {
    missing_.assign(1, piece.box);
    const auto dst_piece = static_cast<int32_t>(&piece - dst_->pieces().data());
    Move move{.tensor = piece.tensor, .dst_piece = dst_piece, .dst = piece.rank, .box = {}};
    move.src_dtype = src_->spec().tensors()[src_tensor_[piece.tensor]].dtype;
    move.dst_dtype = dst_->spec().tensors()[piece.tensor].dtype;
    const auto [own, own_end] =
        std::equal_range(src_pieces_.begin(), src_pieces_.end(), piece,
                         [](const Piece& a, const Piece& b) { return a.rank < b.rank; });
    for (auto held = own; held != own_end; ++held)
      take_out(held->box, [&](const Box& part) {
        move.src = piece.rank;
        move.src_piece = static_cast<int32_t>(&*held - src_->pieces().data());
        move.box = part;
        moves_.push_back(move);
      });
    for (const Atom& atom : atoms_) {
      if (missing_.empty()) break;
      take_out(atom.box, [&](const Box& part) {
        move.box = part;
        if (atom.holder_set >= static_cast<int32_t>(demands_.size()))
          demands_.resize(atom.holder_set + 1);
        demands_[atom.holder_set].push_back({move, atom.pieces});
      });
    }
    if (!missing_.empty())
      throw UsageError("no source rank holds a part of a tensor",
                       str_cat("'", dst_->spec().tensors()[piece.tensor].name, "' ",
                               missing_.front().to_string(), " of ", src_->text()),
                       "");
  }

  void share_out() {
    std::vector<const std::pair<const std::vector<Rank>, int32_t>*> sets;
    for (const auto& entry : set_index_) sets.push_back(&entry);
    std::sort(sets.begin(), sets.end(), [](const auto* a, const auto* b) {
      return std::tuple(a->first.size(), a->second) < std::tuple(b->first.size(), b->second);
    });
    for (const auto* set : sets)
      if (set->second < static_cast<int32_t>(demands_.size()))
        share_out(set->first, demands_[set->second]);
  }

  void share_out(const std::vector<Rank>& holders, const std::vector<Demand>& demands) {
    int64_t total = 0;
    for (const Demand& demand : demands) total += demand.move.num_bytes();
    std::vector<int64_t> quota = quotas(holders, total);
    size_t holder = 0;
    for (const Demand& demand : demands) {
      std::vector<Box> todo{demand.move.box};
      for (size_t i = 0; i < todo.size(); ++i) {
        Move move = demand.move;
        move.box = todo[i];
        const int64_t elem_bytes = move.num_bytes() / move.box.num_elems();
        while (quota[holder] < elem_bytes && holder + 1 < holders.size()) ++holder;
        const int64_t elems = quota[holder] / elem_bytes;
        if (elems < move.box.num_elems() && holder + 1 < holders.size()) {
          std::vector<Box> head, tail;
          split_row_major(move.box, elems, head, tail);
          move.box = head.front();
          todo.insert(todo.begin() + static_cast<int64_t>(i) + 1, tail.begin(), tail.end());
          todo.insert(todo.begin() + static_cast<int64_t>(i) + 1, head.begin() + 1, head.end());
        }
        move.src = holders[holder];
        move.src_piece = demand.pieces[holder];
        quota[holder] -= move.num_bytes();
        load_[move.src] += move.num_bytes();
        moves_.push_back(move);
      }
    }
  }

  /// Bytes that each holder sends of `total`, so that the least loaded fill up to one level.
  std::vector<int64_t> quotas(const std::vector<Rank>& holders, int64_t total) {
    std::vector<size_t> order(holders.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return load_[holders[a]] < load_[holders[b]]; });
    int64_t sum = total, level = 0;
    size_t filled = 0;
    for (; filled < order.size(); ++filled) {
      const int64_t load = load_[holders[order[filled]]];
      if (filled > 0 && load >= level) break;
      sum += load;
      level = (sum + static_cast<int64_t>(filled)) / static_cast<int64_t>(filled + 1);
    }
    std::vector<int64_t> quota(holders.size(), 0);
    for (size_t i = 0; i < filled; ++i)
      quota[order[i]] = std::max<int64_t>(0, level - load_[holders[order[i]]]);
    return quota;
  }

  void order_moves() {
    const auto key = [&](const Move& move) {
      const Piece& piece = dst_->pieces()[move.dst_piece];
      return std::tuple(move.step, move.dst, piece.local,
                        place_within(piece.place, piece.box, move.box).offset_elems);
    };
    std::vector<std::pair<decltype(key(moves_.front())), int32_t>> keys;
    keys.reserve(moves_.size());
    for (int32_t i = 0; i < static_cast<int32_t>(moves_.size()); ++i)
      keys.emplace_back(key(moves_[i]), i);
    std::sort(keys.begin(), keys.end());
    std::vector<Move> ordered;
    ordered.reserve(moves_.size());
    for (const auto& [unused, i] : keys) ordered.push_back(moves_[i]);
    moves_ = std::move(ordered);
  }

  LayoutPtr src_, dst_;
  std::vector<int32_t> src_tensor_;  // by tensor of the destination's spec
  std::span<const Piece> src_pieces_;
  std::vector<Atom> atoms_;
  std::vector<Box> missing_, next_;
  std::map<std::vector<Rank>, int32_t> set_index_;
  std::vector<std::vector<Demand>> demands_;  // by holder set
  std::map<Rank, int64_t> load_;
  std::vector<Move> moves_;
};

}  // namespace

PlanPtr make_plan(const LayoutPtr& src, const LayoutPtr& dst) { return Planner(src, dst).run(); }

}  // namespace hybridengine
