// Pattern: what must move for the tensors of one pair kind, before anyone is chosen to send it.
//
// Vocabulary: source boxes that are equal form an *atom*, held by one or more *holders* (replicas);
// its *holder set* is their ranks. A destination piece is cut into *parts*: first what its own rank
// holds, then the rest along the atoms. Any holder of its atom can send a part. An *ordinal* counts
// the pieces of one tensor in a layout.
//
// Source boxes that overlap without being equal are served first come, first served: every byte
// still moves once, but whoever shares out the parts only sees equal boxes.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "layout/layout.h"
#include "plan/pairing.h"

namespace hybridengine {

/// All holder sets of a plan, numbered.
class HolderSets {
 public:
  int32_t index_of(const std::vector<Rank>& ranks);
  const std::vector<Rank>& ranks(int32_t set) const { return *sets_[set]; }
  int32_t size() const { return static_cast<int32_t>(sets_.size()); }

 private:
  std::map<std::vector<Rank>, int32_t> index_;
  std::vector<const std::vector<Rank>*> sets_;  // keys of index_
};

struct Part {
  Box box;
  int32_t dst_ordinal = 0;
  int32_t holder_set = -1;            // -1: the destination's own rank holds it
  std::vector<int32_t> src_ordinals;  // one per holder, in the order of the holder set
};

/// The parts of every destination piece, ordered by piece. Throws UsageError naming a box that no
/// source rank holds.
std::vector<Part> make_parts(const Layout& src, const Layout& dst, const PairKind& kind,
                             HolderSets& sets);

}  // namespace hybridengine
