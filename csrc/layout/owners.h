// Owners: a layout without replicas, cut out of one with replicas.
//
// Where several ranks hold the same box, each of them comes to own a part of it, and only that.
// What is kept once per element (the master copy and the moments of an optimizer) is stored so.
#pragma once

#include <vector>

#include "layout/layout.h"

namespace hybridengine {

struct OwnedBox {
  Rank rank = 0;
  int32_t tensor = 0;
  Box box;
};

/// One of the ranks that hold it in `layout` for every element: boxes by rank, tensor and start.
/// Ranks own as many bytes as each other where replicas allow it, with the element types of `spec`,
/// whose tensors are those of the layout. Boxes that overlap without being equal go to the lowest
/// rank that holds one of them.
std::vector<OwnedBox> owned_boxes(const Layout& layout, const Spec& spec);

/// The layout in which every element belongs to exactly one of the ranks that hold it in `layout`.
///
/// Each rank has one local tensor, 1-d, for every logical tensor of which it owns something, under
/// the logical name: its boxes one after the other, by start, each row-major. Floating tensors are
/// stored as `dtype`. The result passes check(); every caller comes to the same one. Throws
/// UsageError on a partial layout.
LayoutPtr owners_of(const LayoutPtr& layout, Dtype dtype);

}  // namespace hybridengine
