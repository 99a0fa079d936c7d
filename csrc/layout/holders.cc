#include "layout/holders.h"

#include <algorithm>
#include <numeric>

#include "layout/quota.h"

namespace hybridengine {
namespace {

/// The bytes of each set over all tensors.
std::vector<int64_t> total_bytes(const HolderSets& sets, const std::vector<const Demands*>& kinds,
                                 const std::vector<int32_t>& kind_of) {
  std::vector<int64_t> counts(kinds.size(), 0), totals(sets.size(), 0);
  for (const int32_t kind : kind_of) ++counts[kind];
  for (size_t kind = 0; kind < kinds.size(); ++kind)
    for (const SetDemand& demand : kinds[kind]->sets)
      totals[demand.set] += demand.bytes * counts[kind];
  return totals;
}

/// Moves ends that lie amid an element behind it. They are ascending.
void round_up(std::vector<int64_t>& ends, int32_t set, const std::vector<const Demands*>& kinds,
              const std::vector<int32_t>& kind_of) {
  int64_t at = 0;
  size_t holder = 0;
  for (const int32_t kind : kind_of) {
    const int64_t bytes = kinds[kind]->of(set), elem_bytes = kinds[kind]->elem_bytes;
    for (; bytes > 0 && holder + 1 < ends.size() && ends[holder] <= at + bytes; ++holder)
      ends[holder] = at + (ends[holder] - at + elem_bytes - 1) / elem_bytes * elem_bytes;
    at += bytes;
    if (holder + 1 >= ends.size()) return;
  }
}

}  // namespace

int32_t HolderSets::index_of(const std::vector<Rank>& ranks) {
  const auto [entry, fresh] = index_.emplace(ranks, size());
  if (fresh) {
    sets_.push_back(&entry->first);
    ends_.emplace_back(ranks.size(), 0);
  }
  return entry->second;
}

int32_t HolderSets::position_of(int32_t set, Rank rank) const {
  const std::vector<Rank>& holders = *sets_[set];
  const auto found = std::lower_bound(holders.begin(), holders.end(), rank);
  return found == holders.end() || *found != rank ? -1
                                                  : static_cast<int32_t>(found - holders.begin());
}

int64_t Demands::of(int32_t set) const {
  const auto found = std::lower_bound(sets.begin(), sets.end(), set,
                                      [](const SetDemand& a, int32_t b) { return a.set < b; });
  return found == sets.end() || found->set != set ? 0 : found->bytes;
}

std::vector<Holding> find_holdings(std::span<const Piece> pieces) {
  std::vector<Holding> holdings;
  std::map<std::pair<Dims, Dims>, size_t> index;
  for (int32_t i = 0; i < static_cast<int32_t>(pieces.size()); ++i) {
    const Box& box = pieces[i].box;
    const auto [entry, fresh] = index.emplace(std::pair(box.start, box.size), holdings.size());
    if (fresh) holdings.push_back({box, {}});
    std::vector<int32_t>& ordinals = holdings[entry->second].ordinals;
    if (ordinals.empty() || pieces[ordinals.back()].rank != pieces[i].rank) ordinals.push_back(i);
  }
  return holdings;
}

std::vector<Rank> ranks_of(std::span<const Piece> pieces, const Holding& holding) {
  std::vector<Rank> ranks;
  ranks.reserve(holding.ordinals.size());
  for (const int32_t ordinal : holding.ordinals) ranks.push_back(pieces[ordinal].rank);
  return ranks;
}

void deal(HolderSets& sets, const std::vector<const Demands*>& kinds,
          const std::vector<int32_t>& kind_of) {
  const std::vector<int64_t> totals = total_bytes(sets, kinds, kind_of);
  Rank last = 0;
  std::vector<int32_t> order(sets.size());
  std::iota(order.begin(), order.end(), 0);
  for (const int32_t set : order) last = std::max(last, sets.ranks(set).back());
  std::vector<int64_t> load(last + 1, 0);  // bytes served so far, by rank
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return sets.ranks(a).size() < sets.ranks(b).size();
  });
  for (const int32_t set : order) {
    const std::vector<Rank>& holders = sets.ranks(set);
    std::vector<int64_t> ends = level_quotas(load, holders, totals[set]);
    std::partial_sum(ends.begin(), ends.end(), ends.begin());
    ends.back() = totals[set];
    if (totals[set] > 0) round_up(ends, set, kinds, kind_of);
    sets.set_ends(set, std::move(ends));
    for (size_t i = 0; i < holders.size(); ++i)
      load[holders[i]] += sets.served_bytes(set, static_cast<int32_t>(i));
  }
}

void split_last(int64_t elems, std::vector<Box>& todo) {
  std::vector<Box> head, tail;
  split_row_major(todo.back(), elems, head, tail);
  todo.pop_back();
  todo.insert(todo.end(), tail.rbegin(), tail.rend());
  todo.insert(todo.end(), head.rbegin(), head.rend());
}

}  // namespace hybridengine
