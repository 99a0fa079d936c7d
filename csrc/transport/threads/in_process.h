// The message machinery of media whose ranks are threads of one process: loopback and null.
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

#include "transport/endpoint.h"
#include "transport/fork_guard.h"
#include "transport/registry.h"

namespace hybridengine {

struct Mailbox {
  Mailbox(Rank owner, int32_t its_world, std::string its_group)
      : rank(owner), world(its_world), group(std::move(its_group)) {}

  const Rank rank;
  const int32_t world;
  const std::string group;
  Signs signs;
  struct alignas(64) Page {
    std::byte bytes[kPageBytes] = {};
  };
  std::unique_ptr<Page> page;  // null without Caps::page

  void put(Arrival arrival);

  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Arrival> arrivals;  // guarded by mutex

  enum class State : uint8_t { kMade, kConnecting, kClosed };  // kClosed: it never got through
  State state = State::kMade;                                  // guarded by the directory
};

/// To a thread of this process: its regions and all of its memory are mapped where they are.
class InProcessLink : public Link {
 public:
  InProcessLink(const TransportEntry& entry, const ForkGuard& guard, Rank own,
                std::shared_ptr<Mailbox> peer)
      : entry_(entry), guard_(guard), own_(own), peer_(std::move(peer)) {}

  const Caps& caps() const override { return entry_.caps; }
  bool reaches() override { return true; }
  bool offer(const RegionPtr& region) override;
  Span map(uint64_t region) override;
  Ticket put(std::span<const RemoteRun> runs, const Message& riding) override;
  Ticket get(std::span<const RemoteRun> runs) override;
  void send(const Message& message) override;
  bool sent_all() const override { return true; }

  Mailbox& peer() const { return *peer_; }

 private:
  void copy(std::span<const RemoteRun> runs, bool writing);

  const TransportEntry& entry_;
  const ForkGuard& guard_;
  Rank own_;
  std::shared_ptr<Mailbox> peer_;
  std::map<uint64_t, std::weak_ptr<Region>> offered_;  // by number
};

class InProcessEndpoint : public Endpoint {
 public:
  InProcessEndpoint(const TransportEntry& entry, Rank rank, int32_t world,
                    const std::string& group);
  /// Peers that were connected get kLost.
  ~InProcessEndpoint() override;

  const char* name() const override { return entry_.name; }
  const Caps& caps() const override { return entry_.caps; }
  Blob address() override;
  std::string why_not(Rank peer, const Blob& address) const override;
  void connect(std::span<const Blob> addresses, std::chrono::steady_clock::time_point deadline,
               const std::function<void()>& between) override;
  Link& link(Rank peer) override;
  void release_gone() override {}
  void poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) override;
  Signs* signs(Rank rank) override;
  Span page(Rank rank) override;

 private:
  std::shared_ptr<Mailbox> find(Rank rank, const Blob& address) const;
  std::vector<Rank> absent_peers() const;
  Mailbox* mailbox(Rank rank) const;

  const TransportEntry& entry_;
  ForkGuard guard_;
  Rank rank_;
  int32_t world_;
  uint64_t id_ = 0;  // in the directory
  std::shared_ptr<Mailbox> own_;
  std::vector<std::unique_ptr<InProcessLink>> links_;  // by rank; null: not to be reached
  std::atomic<bool> connected_{false};
};

}  // namespace hybridengine
