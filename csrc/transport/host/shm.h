// shm: the ranks are processes of one host. Messages go over Unix sockets, payload through sealed
// memory that its owner made and its peers map. No name is left anywhere.
//
// The socket calls order payload and messages: bytes written to a window before send() are there
// when poll() returns the message.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "transport/fork_guard.h"
#include "transport/host/epoll.h"
#include "transport/host/sealed_memory.h"
#include "transport/host/shm_peer.h"
#include "transport/registry.h"

namespace hybridengine {

class ShmTransport : public Transport, protected PeerMemory {
 public:
  ShmTransport(Rank rank, int32_t world, const std::string& group);
  ~ShmTransport() override;

  const char* name() const override;
  const Caps& caps() const override;
  Blob address() override;
  void connect(std::span<const Blob> addresses, std::chrono::steady_clock::time_point deadline,
               const std::function<void()>& between) override;
  Span staging(size_t bytes) override;
  Span window(Rank peer, size_t bytes) override;
  void send(Rank peer, const Message& message) override;
  bool sent_all(Rank peer) const override;
  void poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) override;
  Board* board(Rank rank) override;
  PeerMemory* peer_memory() override { return this; }

 protected:
  void publish(const SegmentPtr& segment) override;
  Span map(Rank peer, uint64_t id) override;
  bool readable(Rank peer) override;
  void read(Rank peer, std::span<const RemoteRun> runs) override;
  void write(Rank peer, std::span<const RemoteRun> runs) override;

  ShmPeer& peer_of(Rank peer);
  Board* own_board() { return reinterpret_cast<Board*>(board_.memory.data()); }

 private:
  void post_to_all(const Message& message, const std::shared_ptr<const Fd>& passed);
  std::string take_memory(ShmPeer& peer, Received& frame);
  void finish_connect();
  void post(Rank rank, const Message& message, std::shared_ptr<const Fd> passed);
  void post_staging(Rank rank, const std::shared_ptr<const Fd>& memory);
  void flush(Rank rank);
  void handle_events(std::vector<Arrival>& arrivals);
  void receive(Rank rank, int limit, std::vector<Arrival>& arrivals);
  void take(Rank rank, Received& frame, std::vector<Arrival>& arrivals);
  void lose(Rank rank, const std::string& reason, std::vector<Arrival>& arrivals);
  std::string why_closed(const ShmPeer& peer) const;

  ForkGuard guard_;
  Rank rank_;
  int32_t world_;
  std::string group_;
  Listener listener_;
  SealedMemory board_;  // its descriptor goes to the peers
  SealedMemory staging_;
  Epoll epoll_;
  std::vector<ShmPeer> peers_;
  std::vector<std::pair<uint64_t, std::weak_ptr<Segment>>> published_;
  std::atomic<bool> connected_{false};
};

}  // namespace hybridengine
