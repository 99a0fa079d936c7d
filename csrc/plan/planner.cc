// The planner.
//
// Vocabulary (see pattern.h for parts and holders): a part with a choice of holders is a *demand*.
// Demands of the same holders are shared out so that, over the whole plan, every holder sends as
// much as the others: small holder sets first (they have little choice), each larger set then fills
// up its least loaded members (water-filling). A demand is cut where a holder's share ends, to the
// next whole element, so at most one demand per holder and set is cut. Where holder sets are
// disjoint or nested, as those of replicas are, no choice has a smaller largest sender but for an
// element or two.
//
// Moves are written straight to their final position: a destination's local tensors count their
// moves first.
#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "layout/quota.h"
#include "plan/pattern.h"
#include "plan/plan.h"

namespace hybridengine {
namespace {

struct Demand {
  int32_t tensor = 0;
  int32_t part = 0;
};

/// What one holder sends of a demand.
struct Choice {
  int32_t tensor = 0;
  int32_t part = 0;
  int32_t holder = 0;  // position in the holder set
  int32_t box = -1;    // index into Planner::cuts_; -1: the whole part
};

/// Both ends of a tensor.
struct Ends {
  int32_t tensor = 0;
  int32_t src_piece = 0, dst_piece = 0;  // the first ones
  Dtype src_dtype, dst_dtype;
};

struct Pattern {
  std::vector<Part> parts;
  std::vector<int32_t> fixed;    // parts without a choice
  std::vector<int32_t> demands;  // the other ones
  int64_t elem_bytes = 0;        // on the wire
};

class Planner {
 public:
  Planner(const LayoutPtr& src, const LayoutPtr& dst)
      : src_(src), dst_(dst), pairing_(pair_tensors(*src, *dst)) {
    const auto num_ranks = std::max(src->ranks().back(), dst->ranks().back()) + 1;
    load_.assign(num_ranks, 0);
  }

  PlanPtr run() {
    for (const PairKind& kind : pairing_.kinds) add_pattern(kind);
    collect_demands();
    share_out();
    write_moves();
    order_within_locals();
    return std::make_shared<const Plan>(src_, dst_, std::move(moves_), pairing_);
  }

 private:
  int32_t num_tensors() const { return static_cast<int32_t>(pairing_.kind_of.size()); }
  const Pattern& pattern_of(int32_t tensor) const { return patterns_[pairing_.kind_of[tensor]]; }
  static int32_t first_piece(const Layout& layout, int32_t tensor) {
    return static_cast<int32_t>(layout.pieces_of(tensor).data() - layout.pieces().data());
  }

  void add_pattern(const PairKind& kind) {
    Pattern pattern{make_parts(*src_, *dst_, kind, sets_), {}, {}, 0};
    const Dtype src_dtype = src_->spec().tensors()[kind.src_tensor].dtype;
    const Dtype dst_dtype = dst_->spec().tensors()[kind.dst_tensor].dtype;
    pattern.elem_bytes = static_cast<int64_t>(dtype_bytes(wire_dtype(src_dtype, dst_dtype)));
    for (int32_t i = 0; i < static_cast<int32_t>(pattern.parts.size()); ++i) {
      const Part& part = pattern.parts[i];
      (part.src_ordinals.size() > 1 ? pattern.demands : pattern.fixed).push_back(i);
      if (part.holder_set >= 0 && part.src_ordinals.size() == 1)
        load_[sets_.ranks(part.holder_set).front()] +=
            part.box.num_elems() * pattern.elem_bytes * kind.count;
    }
    patterns_.push_back(std::move(pattern));
  }

  void collect_demands() {
    demands_.resize(sets_.size());
    for (int32_t tensor = 0; tensor < num_tensors(); ++tensor) {
      const Pattern& pattern = pattern_of(tensor);
      for (const int32_t part : pattern.demands)
        demands_[pattern.parts[part].holder_set].push_back({tensor, part});
    }
  }

  void share_out() {
    std::vector<int32_t> order(sets_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return sets_.ranks(a).size() < sets_.ranks(b).size();
    });
    for (const int32_t set : order) share_out(sets_.ranks(set), demands_[set]);
  }

  void share_out(const std::vector<Rank>& holders, const std::vector<Demand>& demands) {
    int64_t total = 0;
    for (const Demand& demand : demands)
      total += part_of(demand).box.num_elems() * pattern_of(demand.tensor).elem_bytes;
    std::vector<int64_t> quota = level_quotas(load_, holders, total);
    size_t holder = 0;
    std::vector<Box> todo, head;  // in reverse order
    for (const Demand& demand : demands) {
      const int64_t elem_bytes = pattern_of(demand.tensor).elem_bytes;
      todo.assign(1, part_of(demand).box);
      bool whole = true;
      while (!todo.empty()) {
        // An element too many for one holder is one fewer for the next.
        for (; quota[holder] <= 0 && holder + 1 < holders.size(); ++holder)
          quota[holder + 1] += quota[holder];
        const int64_t elems = (quota[holder] + elem_bytes - 1) / elem_bytes;
        if (elems < todo.back().num_elems() && holder + 1 < holders.size()) {
          split_last(elems, todo, head);
          whole = false;
        }
        const int64_t bytes = todo.back().num_elems() * elem_bytes;
        quota[holder] -= bytes;
        load_[holders[holder]] += bytes;
        choices_.push_back({demand.tensor, demand.part, static_cast<int32_t>(holder),
                            whole ? -1 : static_cast<int32_t>(cuts_.size())});
        if (!whole) cuts_.push_back(todo.back());
        todo.pop_back();
      }
    }
  }

  /// Puts the parts of the last box in its place, those with the first `elems` elements last.
  static void split_last(int64_t elems, std::vector<Box>& todo, std::vector<Box>& head) {
    std::vector<Box> tail;
    head.clear();
    split_row_major(todo.back(), elems, head, tail);
    todo.pop_back();
    todo.insert(todo.end(), tail.rbegin(), tail.rend());
    todo.insert(todo.end(), head.rbegin(), head.rend());
  }

  const Part& part_of(const Demand& demand) const {
    return pattern_of(demand.tensor).parts[demand.part];
  }

  void write_moves() {
    count_moves();
    for (int32_t tensor = 0; tensor < num_tensors(); ++tensor) {
      const Pattern& pattern = pattern_of(tensor);
      const Ends ends = ends_of(tensor);
      for (const int32_t part : pattern.fixed)
        write_move(ends, pattern.parts[part], 0, pattern.parts[part].box);
    }
    for (const Choice& choice : choices_) {
      const Part& part = part_of({choice.tensor, choice.part});
      write_move(ends_of(choice.tensor), part, choice.holder,
                 choice.box < 0 ? part.box : cuts_[choice.box]);
    }
  }

  /// Finds where the moves of each local tensor begin. Locals are ordered by rank, as moves are.
  void count_moves() {
    next_move_.assign(dst_->locals().size() + 1, 0);
    const auto count = [&](const Piece* pieces, const Part& part) {
      ++next_move_[pieces[part.dst_ordinal].local + 1];
    };
    for (int32_t tensor = 0; tensor < num_tensors(); ++tensor) {
      const Pattern& pattern = pattern_of(tensor);
      const Piece* const pieces = dst_->pieces_of(tensor).data();
      for (const int32_t part : pattern.fixed) count(pieces, pattern.parts[part]);
    }
    for (const Choice& choice : choices_)
      count(dst_->pieces_of(choice.tensor).data(), part_of({choice.tensor, choice.part}));
    for (size_t i = 1; i < next_move_.size(); ++i) next_move_[i] += next_move_[i - 1];
    resize_unwritten(moves_, next_move_.back());
    resize_unwritten(offsets_, next_move_.back());
  }

  Ends ends_of(int32_t tensor) const {
    const int32_t src_tensor = pairing_.src_tensor[tensor];
    return {tensor, first_piece(*src_, src_tensor), first_piece(*dst_, tensor),
            src_->spec().tensors()[src_tensor].dtype, dst_->spec().tensors()[tensor].dtype};
  }

  void write_move(const Ends& ends, const Part& part, int32_t holder, const Box& box) {
    const int32_t dst_piece = ends.dst_piece + part.dst_ordinal;
    const Piece& piece = dst_->pieces()[dst_piece];
    const int32_t at = next_move_[piece.local]++;
    moves_[at] = {
        .tensor = ends.tensor,
        .src_piece = ends.src_piece + part.src_ordinals[holder],
        .dst_piece = dst_piece,
        .src = part.holder_set < 0 ? piece.rank : sets_.ranks(part.holder_set)[holder],
        .dst = piece.rank,
        .src_dtype = ends.src_dtype,
        .dst_dtype = ends.dst_dtype,
        .box = box,
    };
    offsets_[at] = place_within(piece.place, piece.box, box).offset_elems;
  }

  /// By their place, where the moves of a local tensor were not written in that order.
  void order_within_locals() {
    std::vector<std::pair<int64_t, int32_t>> order;
    Table<Move> ordered;
    int32_t begin = 0;
    for (size_t local = 0; local < dst_->locals().size(); begin = next_move_[local++]) {
      const int32_t end = next_move_[local];
      if (std::is_sorted(offsets_.begin() + begin, offsets_.begin() + end)) continue;
      order.clear();
      for (int32_t i = begin; i < end; ++i) order.emplace_back(offsets_[i], i);
      std::sort(order.begin(), order.end());
      ordered.clear();
      for (const auto& [unused, i] : order) ordered.push_back(moves_[i]);
      std::copy(ordered.begin(), ordered.end(), moves_.begin() + begin);
    }
  }

  LayoutPtr src_, dst_;
  Pairing pairing_;
  HolderSets sets_;
  std::vector<Pattern> patterns_;             // by pair kind
  std::vector<std::vector<Demand>> demands_;  // by holder set
  std::vector<int64_t> load_;                 // bytes sent so far, by rank
  std::vector<Choice> choices_;
  std::vector<Box> cuts_;
  std::vector<int32_t> next_move_;  // by local tensor of the destination
  Table<Move> moves_;
  Table<int64_t> offsets_;  // of the moves, in their local tensors
};

}  // namespace

int64_t count_moves(const LayoutPtr& src, const LayoutPtr& dst) {
  const Pairing pairing = pair_tensors(*src, *dst);
  HolderSets sets;
  int64_t moves = 0;
  for (const PairKind& kind : pairing.kinds)
    moves += kind.count * static_cast<int64_t>(make_parts(*src, *dst, kind, sets).size());
  return moves;
}

PlanPtr make_plan(const LayoutPtr& src, const LayoutPtr& dst) {
  if (dst->op() != Op::kCopy)
    throw UsageError("a destination cannot be partial", dst->text(),
                     "Reduce into a layout whose pieces are values.");
  return src->op() == Op::kCopy ? Planner(src, dst).run() : make_reducing_plan(src, dst);
}

}  // namespace hybridengine
