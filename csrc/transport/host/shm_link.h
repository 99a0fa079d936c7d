// ShmLink: one other rank of this host, over a Unix socket, a mailbox and regions that either maps.
//
// Short messages go through the mailbox, regions and long messages by socket; counts that travel
// with both keep the order. A put goes into mapped memory at once. Called by whoever holds the
// link; its endpoint takes what arrives.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/fork_guard.h"
#include "transport/host/board_file.h"
#include "transport/host/epoll.h"
#include "transport/host/mailbox.h"
#include "transport/host/process.h"
#include "transport/host/sealed_memory.h"
#include "transport/host/seqpacket.h"
#include "transport/link.h"

namespace hybridengine {

/// What the links of an endpoint share.
struct ShmSide {
  const char* name = nullptr;  // of the medium, for errors
  const Caps* caps = nullptr;
  ForkGuard guard;
  SealedMemory board;         // a BoardFile; its descriptor goes to the peers
  Epoll epoll;                // watches sockets and processes
  std::set<Rank> crowded;     // whose next message waits until fewer descriptors are under way
  std::vector<Rank> talking;  // whose mailboxes may hold something

  static uint64_t socket_tag(Rank rank) { return static_cast<uint64_t>(rank) << 1; }
  static uint64_t process_tag(Rank rank) { return socket_tag(rank) | 1; }

  BoardFile& own() { return *reinterpret_cast<BoardFile*>(board.memory.data()); }
};

/// What the handshake makes of an address.
struct ShmConnection {
  bool expected = false;  // its address was given
  Fd socket;              // empty: not connected, or lost
  Process process;
  Mapping board;
};

class ShmLink : public Link {
 public:
  ShmLink(ShmSide& side, Rank rank, Rank own, ShmConnection connection);

  const Caps& caps() const override { return *side_.caps; }
  bool reaches() override { return false; }
  bool offer(const RegionPtr& region) override;
  Span map(uint64_t region) override;
  Ticket put(std::span<const RemoteRun> runs, const Message& riding) override;
  Ticket get(std::span<const RemoteRun> runs) override;
  void send(const Message& message) override;
  bool sent_all() const override { return outbox_.empty(); }

  // For its endpoint.

  bool connected() const { return static_cast<bool>(connection_.socket); }
  const Fd& socket() const { return connection_.socket; }
  const Process& process() const { return connection_.process; }
  BoardFile& board() const { return *reinterpret_cast<BoardFile*>(connection_.board.data()); }
  Rank rank() const { return rank_; }
  /// Reserves the own page of mail and says so. Where there is no room the pair keeps to its
  /// socket.
  void open_mailbox();
  /// Sends what waits for the socket.
  void flush();
  /// What came with a frame; "" or what is wrong with it. No descriptor stays.
  std::string take_region(const Received& frame);
  void release_gone();
  /// Forgets the connection; what is sent later is dropped.
  void close();

  Mailbox mail;
  uint64_t frames_taken = 0;  // by socket
  bool said_bye = false;

 protected:
  ShmSide& side() const { return side_; }
  /// Bytes of ordinary memory of the peer, which only a medium that reaches it is asked for.
  virtual void copy_ordinary(std::span<const RemoteRun> runs, bool writing);

 private:
  struct Outgoing {
    Message message;
    std::shared_ptr<const Fd> passed;  // may be null
    uint64_t after = 0;                // see FrameHeader
  };

  void post(const Message& message, std::shared_ptr<const Fd> passed);
  bool put_mail(const Message& message);
  void copy(std::span<const RemoteRun> runs, bool writing);

  ShmSide& side_;
  Rank rank_;
  ShmConnection connection_;
  uint64_t frames_posted_ = 0;                                   // by socket
  std::unordered_map<uint64_t, Mapping> regions_;                // that it has offered, by number
  std::unordered_map<uint64_t, std::weak_ptr<Region>> offered_;  // to it
  std::deque<Outgoing> outbox_;                                  // waits for room in the socket
  bool waits_for_room_ = false;
};

}  // namespace hybridengine
