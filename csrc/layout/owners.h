// Owners: a layout without replicas, cut out of one with replicas.
//
// Where several ranks hold the same box, each of them comes to own a part of it, and only that.
// What is kept once per element (the master copy and the moments of an optimizer) is stored so.
#pragma once

#include <vector>

#include "layout/holders.h"
#include "layout/layout.h"

namespace hybridengine {

/// What the holders of a tensor share among them: disjoint boxes, with sets and offsets, for whose
/// elements each holder can be the owner; what they ask for is appended to `demands`. Boxes that
/// overlap without being equal go to the lowest rank that holds one of them.
std::vector<Holding> owned_holdings(const Layout& layout, int32_t tensor, HolderSets& sets,
                                    Demands& demands);

/// The layout in which every element belongs to exactly one of the ranks that hold it in `layout`.
/// Ranks own as many bytes as each other where replicas allow it.
///
/// Each rank has one local tensor, 1-d, for every logical tensor of which it owns something, under
/// the logical name: its boxes one after the other, by start, each row-major. Floating tensors are
/// stored as `dtype`. The result passes check(); every caller comes to the same one. Throws
/// UsageError on a partial layout.
LayoutPtr owners_of(const LayoutPtr& layout, Dtype dtype);

}  // namespace hybridengine
