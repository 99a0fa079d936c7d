// The message machinery of transports whose ranks are threads of one process: loopback and null.
//
// Each endpoint has a *mailbox*: a queue with a lock and a condition. A process-wide *directory*
// finds the mailbox behind an address. Threads and descriptors: none, whatever the number of ranks.
// The lock of a mailbox also orders bytes written to its owner's regions before the message.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/fork_guard.h"
#include "transport/registry.h"
#include "transport/transport.h"

namespace hybridengine {

struct Mailbox {
  Mailbox(Rank owner, int32_t its_world, std::string its_group)
      : rank(owner), world(its_world), group(std::move(its_group)) {}

  const Rank rank;
  const int32_t world;
  const std::string group;
  Board board;

  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Arrival> arrivals;  // guarded by mutex

  enum class State : uint8_t { kMade, kConnecting, kClosed };  // kClosed: it never got through
  State state = State::kMade;                                  // guarded by the directory
};

class InProcessTransport : public Transport {
 public:
  InProcessTransport(const TransportEntry& entry, Rank rank, int32_t world,
                     const std::string& group);
  /// Peers that were connected get kLost.
  ~InProcessTransport() override;

  const char* name() const override { return entry_.name; }
  const Caps& caps() const override { return entry_.caps; }
  Blob address() override;
  void connect(std::span<const Blob> addresses, std::chrono::steady_clock::time_point deadline,
               const std::function<void()>& between) override;
  bool offer(Rank peer, const RegionPtr& region) override;
  Span map(Rank peer, uint64_t region) override;
  void release_gone() override {}
  bool readable(Rank) override { return true; }
  void read(Rank peer, std::span<const RemoteRun> runs) override;
  void write(Rank peer, std::span<const RemoteRun> runs) override;
  void send(Rank peer, const Message& message) override;
  bool sent_all(Rank) const override { return true; }
  void poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) override;
  Board* board(Rank rank) override;

 private:
  std::shared_ptr<Mailbox> find(Rank rank, const Blob& address) const;
  std::vector<Rank> absent_peers() const;
  Mailbox& peer_of(Rank peer) const;

  const TransportEntry& entry_;
  ForkGuard guard_;
  Rank rank_;
  int32_t world_;
  uint64_t id_ = 0;  // in the directory
  std::shared_ptr<Mailbox> own_;
  std::vector<std::shared_ptr<Mailbox>> peers_;  // by rank; null: not to be reached
  std::map<std::pair<Rank, uint64_t>, std::weak_ptr<Region>> offered_;  // to peers, by number
  std::atomic<bool> connected_{false};
};

}  // namespace hybridengine
