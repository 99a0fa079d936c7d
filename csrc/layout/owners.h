// Owners: a layout without replicas, cut out of one with replicas.
//
// Where several ranks hold the same box, each of them comes to own a part of it, and only that.
// What is kept once per element (the master copy and the moments of an optimizer) is stored so.
#pragma once

#include "layout/layout.h"

namespace hybridengine {

/// The layout in which every element belongs to exactly one of the ranks that hold it in `layout`.
/// Over the whole layout its ranks own as many bytes as each other where replicas allow it. Boxes
/// that overlap without being equal go to the lowest rank that holds one of them.
///
/// Each rank has one local tensor, 1-d, for every logical tensor of which it owns something, under
/// the logical name: its boxes one after the other, by start, each row-major. Floating tensors are
/// stored as `dtype`. The result passes check(); every caller comes to the same one. Throws
/// UsageError on a partial layout.
LayoutPtr owners_of(const LayoutPtr& layout, Dtype dtype);

}  // namespace hybridengine
