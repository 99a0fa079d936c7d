#include "comm/presence.h"

namespace hybridengine {
namespace {

constexpr std::chrono::milliseconds kHeartbeat{100};

}  // namespace

Presence::Presence(Transport& transport, Rank rank, int32_t world)
    : transport_(transport), world_(world), own_(transport.board(rank)), seen_(world) {
  for (Seen& each : seen_) each.when = Clock::now();
  beating_ = std::thread([this] { beat(); });
}

Presence::~Presence() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  beating_.join();
}

void Presence::beat() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    ++own_->heartbeat_ns;
    wake_.wait_for(lock, kHeartbeat);
  }
}

Rank Presence::waiting_for(Rank peer) const {
  const Rank next = board(peer).waiting_for;
  return next < world_ ? next : -1;
}

void Presence::look() {
  const auto now = Clock::now();
  for (Rank peer = 0; peer < world_; ++peer) {
    const int64_t heartbeat = board(peer).heartbeat_ns;
    if (heartbeat == seen_[peer].heartbeat) continue;
    seen_[peer] = {heartbeat, now};
  }
}

}  // namespace hybridengine
