// Transport: how bytes and small messages get from this rank to the others.
//
// One object per rank reaches all of its peers. Submission never blocks; whatever goes wrong later
// arrives from poll() as an Arrival of kind kLost. A transport knows ranks, memory and messages; it
// does not know plans, buckets or tensors (engine/), nor deadlines and agreement (comm/).
//
// Payload: each rank offers *staging* memory. Where Caps::window, a peer's staging is mapped here
// and the sender writes straight into it, then sends a message that says so: a message never
// overtakes bytes written before it. Other transports get put() with their first implementation.
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
#include "transport/peer_memory.h"

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

enum class MessageKind : uint32_t {
  kBlob,       // part of a blob (comm)
  kAddresses,  // engine: part of a table of addresses, as text; `offset` of `value` bytes
  kReady,      // engine: bucket may be read where it lies; `offset` is the digest of the addresses
  kGranted,    // engine: bucket may be written: to its places in segment `value`, or, where that is
               // 0, at `offset` of my staging
  kLanded,     // engine: bucket's bytes are there; `value` is their digest when verifying
  kReleased,   // engine: bucket has been read
  kFailed,     // comm: the sender has failed; text follows as a blob part
  kBye,        // the sender closes in an orderly way
};

/// A message is small and of fixed size; `text` (at most kMaxTextBytes) rides along when not empty.
struct Message {
  MessageKind kind = MessageKind::kBlob;
  uint32_t bucket = 0;
  uint64_t call = 0;
  uint64_t offset = 0;
  uint64_t value = 0;
  uint64_t plan = 0;  // engine: digest of the schedule that this message belongs to
  std::string text;
};

inline constexpr size_t kMaxTextBytes = 32 << 10;

/// Something that came out of poll(): a message, or the loss of a peer.
struct Arrival {
  enum class Kind : uint8_t { kMessage, kLost };
  Kind kind = Kind::kMessage;
  Rank peer = 0;
  Message message;
  std::string reason;  // of a loss: "process 4711 died"
};

/// What a transport can do. Data, not methods that throw.
struct Caps {
  bool window = false;     // peers' staging is mapped: write there
  bool direct = false;     // peers' segments are mapped: final places may be written
  bool pull = false;       // peers' ordinary memory may be readable: PeerMemory::readable says
  bool processes = false;  // reaches other processes (loopback and null do not)
  bool payload = true;     // false: bytes are accounted for, not moved (null)
  bool page = true;        // peers' boards are mapped, lanes too: false where only messages go
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

  /// Receive memory of at least `bytes`, visible to the peers from their next window() on. Asking
  /// again for no more gives the same memory; asking for more gives new memory without the old
  /// bytes, and ends the spans that staging(), and the peers' window(), gave before. Never shrinks.
  /// Throws UsageError when the machine has no room (it is reserved here, not at first touch).
  virtual Span staging(size_t bytes) = 0;

  /// The peer's staging, at least `bytes` of it, as mapped here. Only with Caps::window. The peer
  /// has called staging() before and said so in a message.
  virtual Span window(Rank peer, size_t bytes) = 0;

  /// Queues a message. Messages to one peer arrive in order, exactly once.
  virtual void send(Rank peer, const Message& message) = 0;

  /// False while a message to `peer` waits here because it is slow: only poll() sends it. Before
  /// this rank turns to something else it polls until this is true of all that may need it.
  virtual bool sent_all(Rank peer) const = 0;

  /// Appends what has arrived, waiting up to `timeout` for the first. Flushes queued messages.
  virtual void poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) = 0;

  /// Access to peers' segments and memory; nullptr without Caps::direct and Caps::pull.
  virtual PeerMemory* peer_memory() { return nullptr; }

  /// The board of a rank (own or peer), valid while this object lives; nullptr before connect().
  virtual Board* board(Rank rank) = 0;
};

}  // namespace hybridengine
