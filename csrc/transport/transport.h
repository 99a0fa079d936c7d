// Transport: how bytes and small messages get from this rank to the others.
//
// One object per rank reaches all of its peers. Submission never blocks; whatever goes wrong later
// arrives from poll() as an Arrival of kind kLost. A transport knows ranks, memory and messages; it
// does not know plans, buckets or tensors (engine/), nor deadlines and agreement (comm/).
//
// Payload: a rank *offers* a region of its memory to the peers that are to write into it. Where
// Caps::maps, they find it mapped and write straight into it, then send a message that says so: a
// message never overtakes bytes written before it. Where Caps::pull, a peer's ordinary memory may
// be read.
//
// Threads: send(), poll() and everything else belong to one thread at a time; board() may be read,
// and the own board written, from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/blob.h"
#include "base/rank.h"
#include "base/span.h"
#include "transport/lane.h"
#include "transport/message.h"
#include "transport/region.h"

namespace hybridengine {

/// What a rank shows of itself to all others, without being asked. Lives where every peer can read
/// it (shared memory here; a transport across hosts mirrors it).
struct Board {
  std::atomic<int64_t> heartbeat_ns{0};  // steady clock, written by the rank's watchdog thread
  std::atomic<uint64_t> call{0};         // number of the call it is in; even: outside of any call
  std::atomic<uint64_t> progress{0};     // counts whatever it completes
  std::atomic<int32_t> waiting_for{-1};  // the peer it is waiting for, -1: none
  uint64_t probe_address = 0;  // where a peer that may read this process finds probe_value; set
  uint64_t probe_value = 0;    // before it connects
  Lane lane;
};

/// What a transport can do. Data, not methods that throw.
struct Caps {
  bool maps = false;       // offered regions are mapped: write there
  bool pull = false;       // peers' ordinary memory may be readable: readable() says
  bool processes = false;  // reaches other processes (loopback and null do not)
  bool payload = true;     // false: bytes are accounted for, not moved (null)
  bool page = true;        // peers' boards are mapped, lanes too: false where only messages go
};

/// Bytes at `address` of the peer's address space, and those at `local` that they go to or come
/// from.
struct RemoteRun {
  uint64_t address = 0;
  std::byte* local = nullptr;
  size_t bytes = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual const char* name() const = 0;
  virtual const Caps& caps() const = 0;

  /// What peers need to reach this rank. Local: does not block, promises nothing of the peers.
  virtual Blob address() = 0;

  /// Connects to every rank whose address is not empty (own entry ignored). Blocks until all are
  /// there; throws TimeoutError naming the missing ranks after `deadline`, TransportError where a
  /// peer is not who it claims to be. Calls `between` every 100 ms or more often (it may throw).
  virtual void connect(std::span<const Blob> addresses,
                       std::chrono::steady_clock::time_point deadline,
                       const std::function<void()>& between) = 0;

  /// This rank's receive memory, at least `bytes`, kept from call to call. Asking again for no
  /// more gives the same region; asking for more gives a new one without the old bytes, and lets go
  /// of the old one. Null without Caps::payload, or for no bytes. Throws as Region::make.
  RegionPtr staging(size_t bytes, const std::function<void()>& between);

  /// Lets `peer`, which will take part in this call, write into `region`: messages sent to it later
  /// may name its number. Again: nothing. Nothing waits for ranks that no region is offered to.
  virtual bool offer(Rank peer, const RegionPtr& region) = 0;

  /// The region that `peer` has offered, as mapped here, until its owner is gone or has let go of
  /// it. Only with Caps::maps. Throws TransportError where the peer has not offered it.
  virtual Span map(Rank peer, uint64_t region) = 0;

  /// Lets go of regions that their owners have let go of. At the start of each call.
  virtual void release_gone() = 0;

  /// Whether this rank may read and write the ordinary memory of `peer`: tried once, when first
  /// asked.
  virtual bool readable(Rank peer) = 0;

  /// Copies from the peer's memory, which must stay as it is meanwhile. Blocks for the copy only.
  /// Throws TransportError where the peer is gone or the addresses are not its own.
  virtual void read(Rank peer, std::span<const RemoteRun> runs) = 0;
  /// The same in the other direction: cheaper than read() where many short runs lie here and few
  /// long ones there, for runs that follow each other on one side count once there.
  virtual void write(Rank peer, std::span<const RemoteRun> runs) = 0;

  /// Queues a message. Messages to one peer arrive in order, exactly once.
  virtual void send(Rank peer, const Message& message) = 0;

  /// False while a message to `peer` waits here because it is slow: only poll() sends it. Before
  /// this rank turns to something else it polls until this is true of all that may need it.
  virtual bool sent_all(Rank peer) const = 0;

  /// Appends what has arrived, waiting up to `timeout` for the first. Flushes queued messages.
  virtual void poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) = 0;

  /// The board of a rank (own or peer), valid while this object lives; nullptr before connect().
  virtual Board* board(Rank rank) = 0;

 private:
  RegionPtr staging_;
};

}  // namespace hybridengine
