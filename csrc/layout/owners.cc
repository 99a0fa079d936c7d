// Vocabulary: a *holding* is a box of a tensor together with the ranks that hold it alike, its
// *holders*. Holdings of the same holders are dealt out one after the other: each holder takes
// until its *quota* is used up, and the holding at which that happens is cut there, in row-major
// order. So a set of n holders cuts at most n - 1 of its holdings, and pieces stay long.
//
// Small sets of holders come first, for they have little choice; each larger set then fills up its
// members that own least.
#include "layout/owners.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "layout/quota.h"

namespace hybridengine {
namespace {

struct Holding {
  Box box;
  int32_t holders = 0;  // index into Dealer::sets_
};

/// One holding of one tensor, to be dealt out.
struct Deal {
  int32_t tensor = 0;
  const Holding* holding = nullptr;
};

struct HolderSet {
  std::vector<Rank> ranks;
  std::vector<Deal> deals;
};

/// A box and the ranks that hold it, ascending.
using Held = std::pair<Box, std::vector<Rank>>;

std::vector<Held> held_boxes(std::span<const Piece> pieces) {
  std::map<std::pair<Dims, Dims>, size_t> index;
  std::vector<Held> held;
  for (const Piece& piece : pieces) {
    const auto [entry, fresh] =
        index.emplace(std::pair(piece.box.start, piece.box.size), held.size());
    if (fresh) held.emplace_back(piece.box, std::vector<Rank>());
    std::vector<Rank>& ranks = held[entry->second].second;
    if (ranks.empty() || ranks.back() != piece.rank) ranks.push_back(piece.rank);
  }
  return held;
}

/// Leaves of each box that meets an earlier one what the earlier ones do not have, and gives all
/// that meet another to their first holder. `held` is in the order of first holders.
std::vector<Held> disjoint(const std::vector<Held>& held) {
  std::vector<Held> result;
  for (size_t i = 0; i < held.size(); ++i) {
    std::vector<Box> rest{held[i].first};
    bool meets = false;
    for (size_t j = 0; j < held.size(); ++j) {
      if (j == i || intersect(held[i].first, held[j].first).empty()) continue;
      meets = true;
      if (j < i) subtract_from(rest, held[j].first);
    }
    const std::vector<Rank> first{held[i].second.front()};
    for (const Box& box : rest) result.emplace_back(box, meets ? first : held[i].second);
  }
  return result;
}

class Dealer {
 public:
  Dealer(const Layout& layout, const Spec& spec) : layout_(layout), spec_(spec) {
    load_.assign(layout.ranks().back() + 1, 0);
  }

  std::vector<OwnedBox> run() {
    find_holdings();
    std::vector<int32_t> order(sets_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return sets_[a].ranks.size() < sets_[b].ranks.size();
    });
    for (const int32_t set : order) deal_out(sets_[set]);
    std::sort(owned_.begin(), owned_.end(), [](const OwnedBox& a, const OwnedBox& b) {
      return std::tie(a.rank, a.tensor, a.box.start) < std::tie(b.rank, b.tensor, b.box.start);
    });
    return std::move(owned_);
  }

 private:
  int64_t elem_bytes(int32_t tensor) const {
    return static_cast<int64_t>(dtype_bytes(spec_.tensors()[tensor].dtype));
  }

  void find_holdings() {
    const auto num_tensors = static_cast<int32_t>(spec_.tensors().size());
    by_kind_.resize(layout_.num_kinds());
    std::vector<bool> known(layout_.num_kinds());
    for (int32_t tensor = 0; tensor < num_tensors; ++tensor) {
      const int32_t kind = layout_.kind_of(tensor);
      if (!known[kind]) by_kind_[kind] = holdings_of(tensor);
      known[kind] = true;
      for (const Holding& holding : by_kind_[kind])
        sets_[holding.holders].deals.push_back({tensor, &holding});
    }
  }

  std::vector<Holding> holdings_of(int32_t tensor) {
    std::vector<Held> held = held_boxes(layout_.pieces_of(tensor));
    std::vector<Box> boxes;
    for (const Held& each : held) boxes.push_back(each.first);
    if (find_overlap(Box(spec_.tensors()[tensor].shape), boxes)) held = disjoint(held);
    std::vector<Holding> holdings;
    for (const auto& [box, ranks] : held) holdings.push_back({box, set_of(ranks)});
    return holdings;
  }

  int32_t set_of(const std::vector<Rank>& ranks) {
    const auto [entry, fresh] = set_index_.emplace(ranks, static_cast<int32_t>(sets_.size()));
    if (fresh) sets_.push_back({ranks, {}});
    return entry->second;
  }

  void deal_out(const HolderSet& set) {
    int64_t total = 0;
    for (const Deal& deal : set.deals)
      total += deal.holding->box.num_elems() * elem_bytes(deal.tensor);
    std::vector<int64_t> quota = level_quotas(load_, set.ranks, total);
    size_t holder = 0;
    std::vector<Box> todo, head, tail;  // todo is in reverse order
    for (const Deal& deal : set.deals) {
      for (todo.assign(1, deal.holding->box); !todo.empty();) {
        const Box box = todo.back();
        todo.pop_back();
        // An element too many for one holder is one fewer for the next.
        for (; quota[holder] <= 0 && holder + 1 < quota.size(); ++holder)
          quota[holder + 1] += quota[holder];
        const int64_t elems =
            (quota[holder] + elem_bytes(deal.tensor) - 1) / elem_bytes(deal.tensor);
        if (elems < box.num_elems() && holder + 1 < quota.size()) {
          head.clear();
          tail.clear();
          split_row_major(box, elems, head, tail);
          todo.insert(todo.end(), tail.rbegin(), tail.rend());
          todo.insert(todo.end(), head.rbegin(), head.rend());
          continue;
        }
        const int64_t bytes = box.num_elems() * elem_bytes(deal.tensor);
        quota[holder] -= bytes;
        load_[set.ranks[holder]] += bytes;
        owned_.push_back({set.ranks[holder], deal.tensor, box});
      }
    }
  }

  const Layout& layout_;
  const Spec& spec_;
  std::vector<std::vector<Holding>> by_kind_;
  std::vector<HolderSet> sets_;
  std::map<std::vector<Rank>, int32_t> set_index_;
  std::vector<int64_t> load_;  // bytes owned so far, by rank
  std::vector<OwnedBox> owned_;
};

/// Each rank's boxes one after the other.
LayoutPtr store(const Layout& layout, const SpecPtr& spec, const std::vector<OwnedBox>& owned) {
  std::vector<std::string> names;
  for (const TensorInfo& info : spec->tensors()) names.push_back(info.name);
  Table<LocalTensor> locals;
  Table<Piece> pieces;
  for (const OwnedBox& each : owned) {
    if (locals.empty() || locals.back().rank != each.rank || locals.back().name != each.tensor) {
      locals.push_back({each.rank, each.tensor, spec->tensors()[each.tensor].dtype, {}});
      locals.back().shape.ndim = 1;
    }
    int64_t& length = locals.back().shape.size[0];
    const Shape size(std::span(each.box.size.data(), each.box.ndim));
    pieces.push_back({each.tensor, static_cast<int32_t>(locals.size()) - 1, each.rank, each.box,
                      Place{length, size.contiguous_strides()}});
    length += each.box.num_elems();
  }
  return std::make_shared<const Layout>(str_cat("owners of ", layout.text()), spec, layout.ranks(),
                                        std::move(names), std::move(locals), std::move(pieces));
}

}  // namespace

std::vector<OwnedBox> owned_boxes(const Layout& layout, const Spec& spec) {
  return Dealer(layout, spec).run();
}

LayoutPtr owners_of(const LayoutPtr& layout, Dtype dtype) {
  if (layout->op() != Op::kCopy)
    throw UsageError("contributions have no owners", layout->text(),
                     "Use the layout that they are reduced into.");
  const auto spec = std::make_shared<const Spec>(layout->spec().with_dtype(dtype));
  return store(*layout, spec, owned_boxes(*layout, *spec));
}

}  // namespace hybridengine
