// PeerMemory: what a transport can do with the memory of its peers beyond staging. Each endpoint
// that can do any of it gives one from Transport::peer_memory().
//
// Threads: as Transport.
#pragma once

#include <cstdint>
#include <span>

#include "base/rank.h"
#include "base/span.h"
#include "transport/segment.h"

namespace hybridengine {

/// Bytes at `address` of the peer's address space, to be copied to or from `local`.
struct RemoteRun {
  uint64_t address = 0;
  std::byte* local = nullptr;
  size_t bytes = 0;
};

class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  /// Lets every peer map `segment`, once; messages sent later may name its number. Segments that
  /// are gone by now are taken back from the peers.
  virtual void publish(const SegmentPtr& segment) = 0;

  /// The peer's segment `id`, mapped here until it is taken back. Throws TransportError where the
  /// peer has not published it.
  virtual Span map(Rank peer, uint64_t id) = 0;

  /// Whether this rank may read the ordinary memory of `peer`: tried once, when they connected.
  virtual bool readable(Rank peer) = 0;

  /// Copies from the peer's memory, which must stay as it is meanwhile. Blocks for the copy only.
  /// Throws TransportError where the peer is gone or the addresses are not its own.
  virtual void read(Rank peer, std::span<const RemoteRun> runs) = 0;

  /// Copies to the peer's memory, which nobody must use meanwhile. As read(). A message sent
  /// afterwards arrives after the bytes.
  virtual void write(Rank peer, std::span<const RemoteRun> runs) = 0;
};

}  // namespace hybridengine
