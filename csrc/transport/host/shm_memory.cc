// The part of shm that concerns memory: regions that peers pass to those who write into them.
#include <algorithm>

#include "base/error.h"
#include "transport/host/shm.h"

namespace hybridengine {

/// Maps what came with a frame, so that no descriptor stays; "" or what is wrong with it.
std::string ShmTransport::take_region(ShmPeer& peer, const Received& frame) {
  const Message& message = frame.message;
  const std::string fault = sealed_memory_fault(frame.passed, message.num_bytes);
  if (!fault.empty()) return fault;
  try {
    peer.regions[message.place.region] = map_sealed_memory(frame.passed, message.num_bytes);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

bool ShmTransport::offer(Rank rank, const RegionPtr& region) {
  ShmPeer& peer = peer_of(rank);
  std::erase_if(peer.offered, [](const auto& entry) { return entry.second.expired(); });
  if (!peer.offered.try_emplace(region->id(), region).second) return false;
  Message message;
  message.kind = kRegion;
  message.place.region = region->id();
  message.num_bytes = region->span().bytes;
  post(rank, message, std::shared_ptr<const Fd>(region, &region->file()));
  return true;
}

Span ShmTransport::map(Rank rank, uint64_t region) {
  ShmPeer& peer = peer_of(rank);
  const auto found = peer.regions.find(region);
  if (found == peer.regions.end())
    throw TransportError("a peer grants memory that it has not offered",
                         str_cat("rank ", rank, ", region ", region), "");
  return span_before_mark(found->second);
}

void ShmTransport::release_gone() {
  for (ShmPeer& peer : peers_)
    std::erase_if(peer.regions, [](const auto& entry) { return was_given_back(entry.second); });
}

void ShmTransport::read(Rank, std::span<const RemoteRun>) {
  throw InternalError("shm cannot read a peer's memory", "", "");
}

void ShmTransport::write(Rank, std::span<const RemoteRun>) {
  throw InternalError("shm cannot write a peer's memory", "", "");
}

}  // namespace hybridengine
