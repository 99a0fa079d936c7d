// Link: one peer over one medium. Messages, and payload by put and get.
//
// A *put* writes into memory of the peer, a *get* reads from it. Each gives a ticket; a message may
// ride on a put, and arrives at the peer when all bytes of the put are there: never before. A
// medium may carry a put or a get out at once; its ticket is done then. Others complete later:
// poll() of the endpoint brings an Arrival of kind kDone with the number of the ticket. Until then
// the local bytes must stay as they are.
//
// Memory of a peer is named by a region that it has offered, or, where reaches(), by an address of
// its own. Where Caps::maps, an offered region is also mapped here: bytes may be written there, and
// a message that is sent afterwards does not overtake them.
//
// What it is not: aware of plans, buckets or tensors (engine/), or of deadlines (comm/). Made by
// its endpoint and lives as long; belongs to one thread at a time. Called by comm/, engine/ and
// collective/ by way of the Fabric.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/span.h"
#include "transport/message.h"
#include "transport/region.h"

namespace hybridengine {

/// What a medium can do. Data, not methods that throw.
struct Caps {
  bool maps = false;       // offered regions are mapped: write there
  bool pull = false;       // peers' ordinary memory may be within reach: Link::reaches() says
  bool processes = false;  // reaches other processes (loopback and null do not)
  bool payload = true;     // false: bytes are accounted for, not moved (null)
  bool page = true;        // peers read each other's page (endpoint.h)
};

/// Bytes of the peer, and those at `local` that they go to or come from.
struct RemoteRun {
  RegionRef remote;  // region 0: the offset is an address of the peer's process
  std::byte* local = nullptr;
  size_t bytes = 0;
};

/// What a put or a get was given. Numbers are those of the endpoint; 0: it was done at once.
struct Ticket {
  uint64_t number = 0;
  bool done() const { return number == 0; }
};

class Link {
 public:
  virtual ~Link() = default;

  /// Of its medium.
  virtual const Caps& caps() const = 0;

  /// Whether put and get may name ordinary memory of the peer. Tried once, when first asked.
  virtual bool reaches() = 0;

  /// Lets the peer, which will take part in this call, write into `region`: messages sent later may
  /// name its number. False where it had been told before. Nothing waits for ranks that no region
  /// is offered to.
  virtual bool offer(const RegionPtr& region) = 0;

  /// The region that the peer has offered, as mapped here, until its owner is gone or has let go of
  /// it. Only with Caps::maps. Throws TransportError where the peer has not offered it.
  virtual Span map(uint64_t region) = 0;

  /// Writes `runs` into the peer's memory, then says `riding`. Throws
  /// TransportError where the peer is gone or the memory is not its own.
  virtual Ticket put(std::span<const RemoteRun> runs, const Message& riding) = 0;
  /// Reads `runs`, which must stay as they are meanwhile. Throws as put().
  virtual Ticket get(std::span<const RemoteRun> runs) = 0;

  /// Queues a message: does not block. Messages and puts arrive in order, exactly once.
  virtual void send(const Message& message) = 0;
  /// False while something waits here because the peer is slow: only poll() of the endpoint sends
  /// it. Before this rank turns to something else it polls until this is true of all that may need
  /// it.
  virtual bool sent_all() const = 0;
};

}  // namespace hybridengine
