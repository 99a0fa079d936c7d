// Buckets with gates: contributions, and what comes out of them.
//
// Every owner's stretch of the destination is cut into groups, in its order, and every group fits
// into one bucket with the contributions of all others side by side: memory for staging does not
// grow with the number of ranks. All buckets of a group place the same part at the same offset,
// whether or not they have it. On the owner a group is a gate.
//
// A bucket of an owner's k-th group takes turn k, in either step.
#pragma once

#include "schedule/schedule.h"

namespace hybridengine {

/// Those of `rank`, whose moves `moves` are. Called by make_schedule.
std::vector<Bucket> fuse_with_gates(const Plan& plan, Rank rank, const Table<Move>& moves,
                                    int64_t bucket_bytes);

}  // namespace hybridengine
