// Subsets: a layout with some of its pieces left out, for what trains and for what is summed.
#pragma once

#include <string>
#include <vector>

#include "layout/layout.h"

namespace hybridengine {

/// `layout` of these tensors alone, in its own order. Local tensors keep their shapes and names;
/// those without a piece that is left are dropped, ranks never are. Throws UsageError on a name
/// that the spec lacks.
LayoutPtr select_tensors(const LayoutPtr& layout, const std::vector<std::string>& names);

/// `layout` cut down to the boxes that each rank has in `other` as well, or null where that leaves
/// a part of a tensor to nobody. Both must have the same tensors; neither may be partial.
LayoutPtr common_part(const LayoutPtr& layout, const LayoutPtr& other);

/// `layout` without the copies that tensor parallelism makes.
///
/// Ranks that hold the same boxes of everything are replicas of each other (data parallel). A box
/// that is also held by ranks which differ elsewhere (a norm that tensor parallel ranks have whole)
/// is a *copy* there: its gradient is the same on all of them, so that only one group of replicas
/// may contribute. Which one goes round from tensor to tensor. Throws UsageError where the ranks
/// that share a box do not hold the same tensors, as pipeline stages do.
LayoutPtr without_copies(const LayoutPtr& layout);

}  // namespace hybridengine
