// Rank: the number of one process in a world, counted from 0, as in torch.distributed.
#pragma once

#include <cstdint>

namespace hybridengine {

using Rank = int32_t;

}  // namespace hybridengine
