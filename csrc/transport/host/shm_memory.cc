// The part of shm that concerns memory beyond messages: staging and segments that peers pass.
#include <algorithm>

#include "base/error.h"
#include "transport/host/shm.h"

namespace hybridengine {

/// Keeps what came with a frame; "" or what is wrong with it.
std::string ShmTransport::take_memory(ShmPeer& peer, Received& frame) {
  if (frame.message.kind == kSegmentGone) {
    peer.segments.erase(frame.message.offset);
    return "";
  }
  const std::string fault = sealed_memory_fault(frame.passed, frame.message.value);
  if (!fault.empty()) return fault;
  if (frame.message.kind == kStaging) {
    peer.staged = std::move(frame.passed);
    peer.staged_bytes = frame.message.value;
  } else {
    peer.segments[frame.message.offset] = {std::move(frame.passed), frame.message.value, {}};
  }
  return "";
}

void ShmTransport::post_to_all(const Message& message, const std::shared_ptr<const Fd>& passed) {
  for (Rank rank = 0; rank < world_; ++rank)
    if (rank != rank_ && peers_[rank].socket) post(rank, message, passed);
}

void ShmTransport::publish(const SegmentPtr& segment) {
  guard_.check(name());
  std::erase_if(published_, [&](const auto& entry) {
    if (!entry.second.expired()) return false;
    post_to_all({kSegmentGone, 0, 0, entry.first, 0, 0, {}}, nullptr);
    return true;
  });
  const bool known = std::ranges::any_of(
      published_, [&](const auto& entry) { return entry.first == segment->id(); });
  if (known) return;
  published_.emplace_back(segment->id(), segment);
  const std::shared_ptr<const Fd> passed(segment, &segment->fd());
  post_to_all({kSegment, 0, 0, segment->id(), segment->span().bytes, 0, {}}, passed);
}

Span ShmTransport::map(Rank rank, uint64_t id) {
  ShmPeer& peer = peer_of(rank);
  const auto found = peer.segments.find(id);
  if (found == peer.segments.end())
    throw TransportError("a peer grants memory that it has not published",
                         str_cat("rank ", rank, ", segment ", id), "");
  ShmPeer::Published& segment = found->second;
  if (segment.passed) {
    segment.memory = Mapping::shared(segment.passed, segment.bytes, Mapping::Access::kReadWrite);
    segment.passed.reset();
  }
  return segment.memory.span();
}

bool ShmTransport::readable(Rank) { return false; }

void ShmTransport::read(Rank, std::span<const RemoteRun>) {
  throw InternalError("shm cannot read a peer's memory", "", "");
}

void ShmTransport::write(Rank, std::span<const RemoteRun>) {
  throw InternalError("shm cannot write a peer's memory", "", "");
}

}  // namespace hybridengine
