// SmallRun: a run whose whole payload fits into the small exchange.
//
// Every rank packs all parts that it sends into its entry, shows it, and takes from the entries of
// the others what is for it: no grants, no messages, one wait for all. So a few kilobytes take the
// few microseconds of a barrier. Values, and what the report counts, are those of Run.
//
// Needs: all ranks of the communicator run it, each shows no more than an entry holds
// (Program::shown_bytes), and nothing is combined or verified. Called by bindings.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "comm/report.h"
#include "engine/routine.h"

namespace hybridengine {

/// As Run, from its constructor to the end of advance(). Within a call.
Report run_small(Communicator& comm, Routine& routine, std::vector<TensorMemory> src,
                 std::vector<TensorMemory> dst, const std::vector<int32_t>& aliased);

}  // namespace hybridengine
