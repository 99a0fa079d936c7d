// Endpoint: one medium of this process, with a Link to each peer that it reaches.
//
// Submission never blocks; whatever goes wrong later arrives from poll() as an Arrival of kind
// kLost. Beside messages and payload an endpoint carries two things that ranks show each other
// without being asked: the *signs* of a rank, a few values, and, where Caps::page, its *page*, a
// piece of memory that all its peers read. What is in them only comm/ knows.
//
// Threads: everything belongs to one thread at a time, but that signs() and page() may be called,
// and the own ones written, from any.
//
// One class per medium, in a folder of its own; registry.cc lists them. Made and called by Fabric.
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
#include "transport/link.h"

namespace hybridengine {

/// What a rank tells all others of itself without being asked (comm/presence.h). Peers see each
/// value some time after it was written; a medium without shared memory sends them about ten times
/// a second, from a thread of its own.
struct Signs {
  std::atomic<uint64_t> heartbeat{0};
  std::atomic<uint64_t> call{0};
  std::atomic<uint64_t> progress{0};
  std::atomic<int32_t> waiting_for{-1};
};

/// Of the page of each rank. Zeros at the start.
inline constexpr size_t kPageBytes = 152 << 10;

class Endpoint {
 public:
  virtual ~Endpoint() = default;

  /// As the registry has it: "shm".
  virtual const char* name() const = 0;
  virtual const Caps& caps() const = 0;

  /// What peers need to reach this rank. Local: does not block, promises nothing of the peers.
  virtual Blob address() = 0;

  /// Why the rank with that address cannot be reached from here; "" where it can, as far as
  /// addresses tell. Both ends find the same.
  virtual std::string why_not(Rank peer, const Blob& address) const = 0;

  /// Connects to every rank whose address is not empty (own entry ignored). Blocks until all are
  /// there; throws TimeoutError naming the missing ranks after `deadline`, TransportError where a
  /// peer is not who it claims to be. Calls `between` every 100 ms or more often (it may throw).
  virtual void connect(std::span<const Blob> addresses,
                       std::chrono::steady_clock::time_point deadline,
                       const std::function<void()>& between) = 0;

  /// Throws UsageError unless it is connected to `peer`.
  virtual Link& link(Rank peer) = 0;

  /// Lets go of regions that their owners have let go of. At the start of each call.
  virtual void release_gone() = 0;

  /// Appends what has arrived, waiting up to `timeout` for the first. Sends what waits here.
  virtual void poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) = 0;

  /// The signs of a rank (own, or a peer's as last seen), valid while this object lives; nullptr
  /// before connect() and where it does not reach the rank.
  virtual Signs* signs(Rank rank) = 0;
  /// Its page, in the same way; empty without Caps::page. The own one may be written.
  virtual Span page(Rank rank) = 0;
};

}  // namespace hybridengine
