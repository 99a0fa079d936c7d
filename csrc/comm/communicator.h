// Communicator: this rank among the others. Agreement, waiting with deadlines, and failure.
//
// Everything a rank waits for, it waits for here, so deadlines, Ctrl-C, dead peers and failing
// peers are handled in one place. After any error but UsageError the communicator is dead: every
// later use throws TransportError with the first reason; make a new one.
//
// Vocabulary: a *call* is one collective use (a reshard). Calls are numbered alike on all ranks.
// The *presence* of a rank tells the others, without being asked, that it lives and how far it is.
//
// Called by engine/, collective/ and bindings. One thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/blob.h"
#include "comm/presence.h"
#include "comm/small_exchange.h"
#include "transport/fabric.h"
#include "transport/fork_guard.h"

namespace hybridengine {

struct CommOptions {
  std::chrono::milliseconds timeout{300'000};          // no progress anywhere, all ranks entered
  std::chrono::milliseconds enter_timeout{1'800'000};  // a living rank has not entered the call
  /// Called every 100 ms or more often while waiting; may throw (Ctrl-C).
  std::function<void()> between = [] {};
};

class Communicator {
 public:
  Communicator(std::unique_ptr<Fabric> fabric, Rank rank, int32_t world, CommOptions options);
  ~Communicator() { close(); }

  /// Says goodbye if it can, ends the heartbeat, frees everything; the communicator is dead then.
  /// In a forked child it leaves what belongs to the parent alone. Never throws, never blocks for
  /// more than a second. Again: nothing.
  void close() noexcept;
  /// From any thread: ends the wait that another thread is in, which throws TransportError. For an
  /// interpreter that is about to exit.
  void cancel() { cancelled_ = true; }

  Rank rank() const { return rank_; }
  int32_t world() const { return world_; }
  /// Throws TransportError once it is closed.
  Fabric& fabric();
  Link& link(Rank peer) { return fabric().link(peer); }
  const CommOptions& options() const { return options_; }
  bool dead() const { return !death_.empty(); }
  /// Bounds on waiting, from the next wait on.
  void set_timeout(std::chrono::milliseconds timeout) { options_.timeout = timeout; }

  Blob address() { return fabric().address(); }
  void connect(std::span<const Blob> addresses);

  /// Enters the next call: every rank calls it in the same order.
  void enter();
  /// Leaves it, once all that it sent to ranks that are still in it, or come to it late, is out of
  /// its hands: a rank outside of a call does not poll. What waits for a rank that has left goes
  /// out in a later call. Throws as wait() does. CallScope is the way to use both.
  void leave();

  /// Every rank gives some parts and gets those of all, by rank; where they are equal, the same
  /// object. Within a call. gather.cc says how it grows.
  std::vector<std::vector<std::shared_ptr<const Blob>>> gather(std::span<const Blob> parts);

  /// Small data in microseconds: every rank writes into lane_entry(), then calls exchange() with
  /// the number of bytes and gets the entries of all ranks, by rank, valid until its next
  /// exchange(). Within a call. small_exchange.h says how.
  std::span<std::byte> lane_entry();
  Entries exchange(size_t num_bytes, const char* doing);

  /// Sends within the current call (the call number is filled in).
  void send(Rank peer, Message message);
  /// Link::put and Link::get within the current call; a peer that is gone may have gone because of
  /// a third one, which is then named. What is done later comes as an arrival (drain()).
  Ticket put(Rank peer, std::span<const RemoteRun> runs, Message riding);
  Ticket get(Rank peer, std::span<const RemoteRun> runs);
  /// Waits until there is a message of the current call. `peers_owing` are the ranks it is waiting
  /// for and `doing` what for, to name in an error. Throws TransportError (a rank died or failed)
  /// or TimeoutError, after telling the others.
  void wait(std::span<const Rank> peers_owing, const std::string& doing);
  /// Appends the messages of the current call that are here. Does not wait.
  void drain(std::vector<Arrival>& arrivals);
  /// Tells the others how far this rank is: once per bucket or so.
  void made_progress() { presence_->made_progress(); }

  /// Tells all ranks that this one cannot go on and why, and dies. Does not throw.
  void fail(const std::string& reason) noexcept;

  /// What this rank has sent to others, but for payload.
  struct Traffic {
    int64_t messages = 0;
    int64_t bytes = 0;
  };
  const Traffic& traffic() const { return traffic_; }

  // For the parts of comm/.

  /// Until `here()`: the one wait of the core, which watches peers, deadlines and Ctrl-C. Between
  /// looks it takes messages, `slice` long, or calls `sleep` where there is one. `peers_owing` and
  /// `doing` as in wait(), and it throws as that does. `expects_blobs`: a message of the engine is
  /// a sign that a peer is in another call; else a blob is.
  void wait_until(const std::function<bool()>& here, std::span<const Rank> peers_owing,
                  const std::string& doing, bool expects_blobs,
                  const std::function<void()>& sleep = {});
  Blob receive_blob(Rank peer, const std::string& doing);
  void send_blob(Rank peer, const Blob& blob);
  void check_alive() const;
  [[noreturn]] void throw_different_calls(Rank peer) const;

 private:
  template <class Act>
  Ticket reach(const Act& act);
  void hear_reason();
  void say_goodbye() noexcept;
  void flush();
  std::vector<Rank> slow_peers() const;
  void poll_until_sent(std::chrono::milliseconds patience);
  void pump(std::chrono::microseconds timeout);
  void take(Arrival&& arrival);
  void take_blob_part(Rank peer, const Message& message);
  bool has_message() const;
  void count(const Message& message);
  void post(Rank peer, const Message& message);
  void check_same_call(std::span<const Rank> peers_owing, bool expects_blobs) const;

  void check_lost(std::span<const Rank> peers_owing);
  void check_silence(std::span<const Rank> peers_owing, const std::string& doing);
  bool has_left(Rank peer) const { return presence_->has_left(peer, call_); }
  Rank follow_waiting(Rank from);
  [[noreturn]] void die_of_peer(Rank culprit, std::string reason);  // a copy: arrivals are cleared
  [[noreturn]] void die_of_silence(Rank culprit, std::chrono::nanoseconds silent,
                                   const std::string& why, const std::string& doing);
  void tell_all(Rank culprit, const std::string& reason) noexcept;
  void between();

  struct Complete {
    Blob blob;
    uint64_t call = 0;  // that it was sent in
  };
  struct Peer {
    std::deque<Complete> blobs;
    Blob partial;  // of the one that is arriving
    bool said_bye = false;
    std::string lost;  // reason, "" while connected
  };

  ForkGuard guard_;
  std::unique_ptr<Fabric> fabric_;
  Rank rank_;
  int32_t world_;
  CommOptions options_;
  std::string death_;
  std::atomic<bool> cancelled_{false};
  uint64_t call_ = 0;
  std::vector<Peer> peers_;
  std::deque<Arrival> inbox_;
  std::vector<Arrival> fresh_;
  std::unique_ptr<Presence> presence_;  // from connect() on, as is the next one
  std::unique_ptr<SmallExchange> small_;
  bool mapped_ = false;  // it goes through pages
  Traffic traffic_;

  // What check_silence() remembers.
  std::chrono::steady_clock::time_point entered_at_, moved_at_, between_at_;
  uint64_t moved_sum_ = 0;
};

}  // namespace hybridengine
