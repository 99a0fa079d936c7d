// Layouts of the logical tensors of a request: whole on some ranks, or cut into one chunk per rank
// along dim 0.
#pragma once

#include <vector>

#include "collective/request.h"
#include "layout/layout.h"

namespace hybridengine {

/// Tensors named by their number. `flat`: as one row of elements each.
SpecPtr spec_of(const Request& request, bool flat);

LayoutPtr whole_on(const SpecPtr& spec, std::vector<Rank> ranks);
LayoutPtr chunks_on(const SpecPtr& spec, int32_t world);

}  // namespace hybridengine
