// Carrying the packets of a collective: in rounds where every rank reads what its peers show
// (rounds.h), by messages where their memory is not mapped (exchange.h).
//
// What it is not: aware of what packets hold. Called by the collectives, within a call.
#pragma once

#include <cstdint>
#include <span>

#include "collective/steps.h"
#include "comm/communicator.h"

namespace hybridengine {

struct Carried {
  int64_t sent_bytes = 0;     // packets of this rank, as often as they went out
  int64_t staging_bytes = 0;  // reserved for them
};

/// A packet of `wish` bytes, or of less where the slots of a rank would not stay within three
/// buckets of `bucket_bytes` (0: of the default size).
int64_t packet_bytes_for(int64_t bucket_bytes, int32_t world, int64_t wish);

/// `num_chunks` is by owner. `plan` is a digest of what the ranks agreed on: a peer that does
/// something else is a TransportError. All of it is alike on all ranks. Throws UsageError where
/// there is no memory for the slots, and as Communicator::wait does.
Carried carry(Communicator& comm, uint64_t plan, int64_t packet_bytes,
              std::span<const size_t> num_chunks, Steps& steps);

}  // namespace hybridengine
