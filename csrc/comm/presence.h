// Presence: what each rank tells all others of itself without being asked, and when it last did.
//
// Four values: a *heartbeat*, which a thread of the rank counts up ten times a second, whatever the
// rank does; the *call* it is in; its *progress*, which counts whatever it completes; and the peer
// it is *waiting for*. They are values and no times: clocks of two hosts have nothing in common. A
// receiver notes by its own clock when it saw a heartbeat change.
//
// The endpoints of both carry them (Signs): through shared memory inside a host, by message beyond.
// look() costs n reads, and each rank holds n of them.
//
// What it is not: a judgement; failure.cc says who is lost. Called by Communicator: one thread at a
// time, and the heartbeat's own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "transport/fabric.h"

namespace hybridengine {

class Presence {
 public:
  using Clock = std::chrono::steady_clock;

  /// Begins to beat. `fabric` is connected and outlives it.
  Presence(const Fabric& fabric, Rank rank, int32_t world);
  /// Ends it: joins its thread. Not in a forked child.
  ~Presence();

  // Of this rank.
  void enter(uint64_t call) { show(&Signs::call, 2 * call - 1); }
  void leave(uint64_t call) { show(&Signs::call, 2 * call); }
  void made_progress() { show(&Signs::progress, ++progress_); }
  void wait_for(Rank peer) { show(&Signs::waiting_for, peer); }
  void wait_for_nobody() { wait_for(-1); }

  // Of any rank, as last told.
  bool has_entered(Rank peer, uint64_t call) const { return signs(peer).call >= 2 * call - 1; }
  bool has_left(Rank peer, uint64_t call) const { return signs(peer).call >= 2 * call; }
  /// Who `peer` waits for; -1: for nobody.
  Rank waiting_for(Rank peer) const;
  /// Changes whenever `peer` enters a call, leaves it or completes something.
  uint64_t moved(Rank peer) const { return signs(peer).call + signs(peer).progress; }

  /// Notes which heartbeats have changed since the last look.
  void look();
  /// When a look last found it changed; when this began where none did.
  Clock::time_point last_seen(Rank peer) const { return seen_[peer].when; }

 private:
  struct Seen {
    uint64_t heartbeat = 0;
    Clock::time_point when;
  };

  /// This rank's own as it wrote them.
  const Signs& signs(Rank rank) const {
    return rank == rank_ ? *own_.front() : fabric_.signs(rank);
  }
  template <class Value>
  void show(std::atomic<Value> Signs::* sign, Value value) {
    for (Signs* const each : own_) (each->*sign).store(value, std::memory_order_seq_cst);
  }
  void beat();

  const Fabric& fabric_;
  Rank rank_;
  int32_t world_;
  std::vector<Signs*> own_;  // one for each medium
  uint64_t progress_ = 0;
  std::vector<Seen> seen_;  // by rank

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread beating_;
};

}  // namespace hybridengine
