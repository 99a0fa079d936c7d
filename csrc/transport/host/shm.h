// shm: the ranks are processes of one host. Messages go over Unix sockets, payload through sealed
// memory that its owner made and its peers map. No name is left anywhere.
//
// Short messages go through mailboxes in shared memory. Socket calls and mailboxes order payload
// and messages: bytes written to a region before send() are there when poll() returns the message.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "transport/fork_guard.h"
#include "transport/host/board_file.h"
#include "transport/host/epoll.h"
#include "transport/host/sealed_memory.h"
#include "transport/host/shm_peer.h"
#include "transport/registry.h"

namespace hybridengine {

class ShmTransport : public Transport {
 public:
  ShmTransport(Rank rank, int32_t world, const std::string& group);
  ~ShmTransport() override;

  const char* name() const override;
  const Caps& caps() const override;
  Blob address() override;
  void connect(std::span<const Blob> addresses, std::chrono::steady_clock::time_point deadline,
               const std::function<void()>& between) override;
  bool offer(Rank peer, const RegionPtr& region) override;
  Span map(Rank peer, uint64_t region) override;
  void release_gone() override;
  bool readable(Rank) override { return false; }
  void read(Rank peer, std::span<const RemoteRun> runs) override;
  void write(Rank peer, std::span<const RemoteRun> runs) override;
  void send(Rank peer, const Message& message) override;
  bool sent_all(Rank peer) const override;
  void poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) override;
  Board* board(Rank rank) override;

 protected:
  ShmPeer& peer_of(Rank peer);
  BoardFile& own_board() { return *reinterpret_cast<BoardFile*>(board_.memory.data()); }

 private:
  static constexpr uint64_t kAllMail = UINT64_MAX;

  std::string take_region(ShmPeer& peer, const Received& frame);
  void finish_connect();

  // shm_mail.cc
  void open_mailbox(Rank rank);
  bool put_mail(Rank rank, const Message& message);
  void take_mail(std::vector<Arrival>& arrivals);
  void take_mail_of(Rank rank, uint64_t limit, std::vector<Arrival>& arrivals);
  bool mail_is_here() const;
  bool look_for_mail(std::chrono::nanoseconds patience) const;
  void sleep(std::chrono::nanoseconds patience);

  void post(Rank rank, const Message& message, std::shared_ptr<const Fd> passed);
  void flush(Rank rank);
  void flush_crowded();
  void look_at_sockets(std::vector<Arrival>& arrivals);
  void handle_events(std::vector<Arrival>& arrivals);
  void receive(Rank rank, int limit, std::vector<Arrival>& arrivals);
  void take(Rank rank, Received& frame, std::vector<Arrival>& arrivals);
  void deliver(Rank rank, Message&& message, std::vector<Arrival>& arrivals);
  void lose(Rank rank, const std::string& reason, std::vector<Arrival>& arrivals);
  std::string why_closed(const ShmPeer& peer) const;

  ForkGuard guard_;
  Rank rank_;
  int32_t world_;
  std::string group_;
  Listener listener_;
  SealedMemory board_;  // a BoardFile; its descriptor goes to the peers
  Epoll epoll_;
  std::vector<ShmPeer> peers_;
  std::set<Rank> crowded_;     // whose next message waits until fewer descriptors are under way
  std::vector<Rank> talking_;  // whose mailboxes may hold something
  std::chrono::steady_clock::time_point looked_at_;  // the sockets
  std::atomic<bool> connected_{false};
};

}  // namespace hybridengine
