// Holders: ranks that hold the same box, and which of them does what any of them could do.
//
// Vocabulary: a *holding* is a box of a tensor together with the ranks that hold it alike, its
// *holders*; these are a *set*, and sets are numbered. A *demand* is what any holder of a set can
// serve: a box to send, an element to own. The demands of a set, tensor after tensor, are one long
// row of bytes. Holder h serves the bytes from end h - 1 to end h of it, so a choice is one number
// per holder, however many tensors and ranks there are. Ends lie between elements.
//
// Called by layout/owners and by the planner.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "layout/layout.h"

namespace hybridengine {

/// The sets of a plan, and what each holder of them serves.
class HolderSets {
 public:
  HolderSets() = default;
  HolderSets(HolderSets&&) = default;
  HolderSets& operator=(HolderSets&&) = default;

  /// `ranks` are ascending.
  int32_t index_of(const std::vector<Rank>& ranks);
  int32_t size() const { return static_cast<int32_t>(sets_.size()); }
  const std::vector<Rank>& ranks(int32_t set) const { return *sets_[set]; }
  bool contains(int32_t set, Rank rank) const { return position_of(set, rank) >= 0; }
  /// Position of a rank among the holders; -1 where it is none.
  int32_t position_of(int32_t set, Rank rank) const;

  /// By holder, ascending, in bytes of the row of demands; set by deal() or load().
  const std::vector<int64_t>& ends(int32_t set) const { return ends_[set]; }
  void set_ends(int32_t set, std::vector<int64_t> ends) { ends_[set] = std::move(ends); }
  int64_t served_bytes(int32_t set, int32_t holder) const {
    return ends_[set][holder] - (holder == 0 ? 0 : ends_[set][holder - 1]);
  }

 private:
  std::map<std::vector<Rank>, int32_t> index_;
  std::vector<const std::vector<Rank>*> sets_;  // keys of index_
  std::vector<std::vector<int64_t>> ends_;
};

struct Holding {
  Box box;
  std::vector<int32_t> ordinals;  // of a piece of each holder, among those of the tensor
  int32_t set = -1;
  int64_t offset_bytes = 0;  // among what its set is asked for one tensor, where it is a demand
};

/// What a set is asked for one tensor.
struct SetDemand {
  int32_t set = 0;
  int64_t bytes = 0;
};

/// All demands for a tensor of one kind, ascending by set.
struct Demands {
  int64_t elem_bytes = 1;
  std::vector<SetDemand> sets;

  int64_t of(int32_t set) const;
};

/// Pieces with equal boxes, in the order of their first ones. A rank that holds a box twice counts
/// once. Their sets are left open.
std::vector<Holding> find_holdings(std::span<const Piece> pieces);

/// The ranks of a holding, ascending.
std::vector<Rank> ranks_of(std::span<const Piece> pieces, const Holding& holding);

/// Finds the ends of all sets, so that every rank comes to serve as many bytes as the others where
/// sets allow it: small sets first (they have little choice), each larger one then fills up its
/// members that serve least. `kinds` are the demands of a tensor of each kind.
void deal(HolderSets& sets, const std::vector<const Demands*>& kinds,
          const std::vector<int32_t>& kind_of);

/// Where the demands of one tensor begin in the rows of the sets.
class DemandPosition {
 public:
  explicit DemandPosition(int32_t num_sets) : at_(num_sets, 0) {}
  int64_t of(int32_t set) const { return at_[set]; }
  /// Goes on to the next tensor.
  void pass(const Demands& demands) {
    for (const SetDemand& each : demands.sets) at_[each.set] += each.bytes;
  }

 private:
  std::vector<int64_t> at_;
};

/// Puts the parts of the last box in its place, those with the first `elems` elements last.
void split_last(int64_t elems, std::vector<Box>& todo);

/// Calls found(holder, box) on what each holder serves of a box whose bytes begin at `begin_bytes`
/// of the row that `ends` cut.
template <class Found>
void share_out(const std::vector<int64_t>& ends, int64_t begin_bytes, const Box& box,
               int64_t elem_bytes, const Found& found) {
  int32_t holder = 0;
  while (ends[holder] <= begin_bytes) ++holder;
  if (begin_bytes + box.num_elems() * elem_bytes <= ends[holder]) return found(holder, box);
  std::vector<Box> todo{box};  // in reverse order
  for (int64_t at = begin_bytes; !todo.empty(); todo.pop_back()) {
    while (ends[holder] <= at) ++holder;
    // Rounded up, so that ends from a damaged file end too.
    const int64_t elems = (ends[holder] - at + elem_bytes - 1) / elem_bytes;
    if (elems < todo.back().num_elems()) split_last(elems, todo);
    found(holder, todo.back());
    at += todo.back().num_elems() * elem_bytes;
  }
}

}  // namespace hybridengine
