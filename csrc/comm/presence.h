// Presence: what each rank tells all others of itself without being asked, and when it last did.
//
// Four values: a *heartbeat*, which a thread of the rank counts up ten times a second, whatever the
// rank does; the *call* it is in; its *progress*, which counts whatever it completes; and the peer
// it is *waiting for*. They are values and no times: clocks of two hosts have nothing in common. A
// receiver notes by its own clock when it saw a heartbeat change.
//
// Where peers map each other's pages they are read there (Board): look() costs n reads, and each
// rank holds n of them. Only this file knows where they are: an endpoint without pages carries the
// same values by message.
//
// What it is not: a judgement; failure.cc says who is lost. Called by Communicator: one thread at a
// time, and the heartbeat's own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "transport/transport.h"

namespace hybridengine {

class Presence {
 public:
  using Clock = std::chrono::steady_clock;

  /// Begins to beat. `transport` is connected and outlives it.
  Presence(Transport& transport, Rank rank, int32_t world);
  /// Ends it: joins its thread. Not in a forked child.
  ~Presence();

  // Of this rank.
  void enter(uint64_t call) { own_->call = 2 * call - 1; }
  void leave(uint64_t call) { own_->call = 2 * call; }
  void made_progress() { own_->progress.fetch_add(1, std::memory_order_relaxed); }
  void wait_for(Rank peer) { own_->waiting_for = peer; }
  void wait_for_nobody() { own_->waiting_for = -1; }

  // Of any rank, as last told.
  bool has_entered(Rank peer, uint64_t call) const { return board(peer).call >= 2 * call - 1; }
  bool has_left(Rank peer, uint64_t call) const { return board(peer).call >= 2 * call; }
  /// Who `peer` waits for; -1: for nobody.
  Rank waiting_for(Rank peer) const;
  /// Changes whenever `peer` enters a call, leaves it or completes something.
  uint64_t moved(Rank peer) const { return board(peer).call + board(peer).progress; }

  /// Notes which heartbeats have changed since the last look.
  void look();
  /// When a look last found it changed; when this began where none did.
  Clock::time_point last_seen(Rank peer) const { return seen_[peer].when; }

 private:
  struct Seen {
    int64_t heartbeat = 0;
    Clock::time_point when;
  };

  const Board& board(Rank peer) const { return *transport_.board(peer); }
  void beat();

  Transport& transport_;
  int32_t world_;
  Board* own_;
  std::vector<Seen> seen_;  // by rank

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread beating_;
};

}  // namespace hybridengine
