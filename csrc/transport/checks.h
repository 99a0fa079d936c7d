// What every transport asks of its arguments, with the same words, and the copy of one that maps.
// Called by the transports.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "base/blob.h"
#include "transport/link.h"

namespace hybridengine {

/// Throws UsageError unless 0 <= rank < world.
void check_place(Rank rank, int32_t world);
/// Throws UsageError unless there is one address per rank.
void check_addresses(std::span<const Blob> addresses, int32_t world);
/// Throws UsageError unless `peer` is a rank of the world other than `rank`.
void check_peer(Rank peer, Rank rank, int32_t world);
/// Throws UsageError unless kind and text are within their bounds.
void check_message(const Message& message);
[[noreturn]] void throw_not_connected(Rank peer);
[[noreturn]] void throw_not_offered(Rank peer, uint64_t region);
[[noreturn]] void throw_already_connected();
/// "ranks 2, 5 did not connect ..." for the ranks in `missing`.
[[noreturn]] void throw_missing(const char* transport, std::span<const Rank> missing,
                                double waited_s);

/// Where `run` lies in the region that it names, mapped at `region` and offered by `peer`. Throws
/// TransportError, which says `what`, where it is not within.
std::byte* place_in(Span region, const RemoteRun& run, Rank peer,
                    const char* what = "a place lies outside of the region that it names");

/// Copies `runs`, which lie at the peer where `place_of(run)` says that they are mapped here.
template <class PlaceOf>
void copy_mapped(std::span<const RemoteRun> runs, bool writing, const PlaceOf& place_of) {
  for (const RemoteRun& run : runs) {
    std::byte* const theirs = place_of(run);
    std::memcpy(writing ? theirs : run.local, writing ? run.local : theirs, run.bytes);
  }
}

}  // namespace hybridengine
