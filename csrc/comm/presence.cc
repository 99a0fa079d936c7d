#include "comm/presence.h"

namespace hybridengine {
namespace {

constexpr std::chrono::milliseconds kHeartbeat{100};

}  // namespace

Presence::Presence(const Fabric& fabric, Rank rank, int32_t world)
    : fabric_(fabric), rank_(rank), world_(world), own_(fabric.own_signs()), seen_(world) {
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
  for (uint64_t beats = 1; !stop_; ++beats) {
    show(&Signs::heartbeat, beats);
    wake_.wait_for(lock, kHeartbeat);
  }
}

Rank Presence::waiting_for(Rank peer) const {
  const Rank next = signs(peer).waiting_for;
  return next < world_ ? next : -1;
}

void Presence::look() {
  const auto now = Clock::now();
  for (Rank peer = 0; peer < world_; ++peer) {
    const uint64_t heartbeat = signs(peer).heartbeat;
    if (heartbeat == seen_[peer].heartbeat) continue;
    seen_[peer] = {heartbeat, now};
  }
}

}  // namespace hybridengine
