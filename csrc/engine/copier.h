// Copier: moves the bytes of a run, within this process and between it and its peers, and gives
// tickets.
//
// What is submitted completes in order. What follows from it may be said only once its ticket is
// done: that a part has landed, that a slot is free, that a source may change. On the host the
// bytes have moved when submit() returns, so every ticket is done at once; where a device copies
// them they are done later. A list need not stay longer than the call.
//
// What it is not: aware of parts, slots, or whom to tell. Everything that the engine does with the
// memory of peers is done here. Called by Run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "device/copy.h"
#include "engine/fold.h"

namespace hybridengine {

/// The elements of a box, from one end to the other.
struct StridedCopy {
  StridedEnd src, dst;
  int ndim = 0;
  Dims size{};
};

using CopyList = std::vector<StridedCopy>;

class Copier {
 public:
  /// What was submitted, by its number; the one of nothing is done.
  struct Ticket {
    uint64_t number = 0;
  };

  explicit Copier(Communicator& comm) : comm_(comm) {}

  Ticket submit(const CopyList& list);
  Ticket submit(const FoldList& list);

  /// Whether this rank and `peer` reach each other's ordinary memory.
  bool reaches(Rank peer) const;
  /// Between this rank's memory and that of a peer that it reaches. Throw TransportError where the
  /// peer is gone or the addresses are not its own.
  Ticket read(Rank peer, std::span<const RemoteRun> runs);
  Ticket write(Rank peer, std::span<const RemoteRun> runs);

  bool done(Ticket ticket) const { return ticket.number <= completed_; }

 private:
  Ticket completed() { return {++completed_}; }

  Communicator& comm_;
  uint64_t completed_ = 0;
};

/// `bytes` of the memory that a peer granted at `place`, as mapped here. Throws TransportError
/// where the peer has not offered it, and one that says `what` where they go beyond its end.
std::byte* granted_memory(Communicator& comm, Rank peer, const RegionRef& place, size_t bytes,
                          const char* what = "a peer grants a slot that no memory has");

}  // namespace hybridengine
