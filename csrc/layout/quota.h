// Quota: how much each of several ranks takes of a task that any of them could do.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/rule.h"

namespace hybridengine {

/// Bytes that each of `ranks` takes of `total`, so that those with the least `load` (by rank) fill
/// up to one level.
std::vector<int64_t> level_quotas(const std::vector<int64_t>& load, const std::vector<Rank>& ranks,
                                  int64_t total);

}  // namespace hybridengine
