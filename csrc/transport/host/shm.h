// shm: the ranks are processes of one host. Messages go over Unix sockets, payload through sealed
// memory that its owner made and its peers map. No name is left anywhere.
//
// Short messages go through mailboxes in shared memory. Socket calls and mailboxes order payload
// and messages: bytes written to a region before send() are there when poll() returns the message.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "transport/endpoint.h"
#include "transport/host/shm_link.h"

namespace hybridengine {

class ShmEndpoint : public Endpoint {
 public:
  ShmEndpoint(const char* name, const Caps& caps, Rank rank, int32_t world,
              const std::string& group);
  ~ShmEndpoint() override;

  const char* name() const override { return side_.name; }
  const Caps& caps() const override { return *side_.caps; }
  Blob address() override;
  std::string why_not(Rank peer, const Blob& address) const override;
  void connect(std::span<const Blob> addresses, std::chrono::steady_clock::time_point deadline,
               const std::function<void()>& between) override;
  Link& link(Rank peer) override;
  void release_gone() override;
  void poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) override;
  Signs* signs(Rank rank) override;
  Span page(Rank rank) override;

 protected:
  ShmSide& side() { return side_; }
  /// cma makes links of its own.
  virtual std::unique_ptr<ShmLink> make_link(Rank peer, ShmConnection connection);
  Rank rank() const { return rank_; }

 private:
  static constexpr uint64_t kAllMail = UINT64_MAX;

  BoardFile* board(Rank rank);

  // shm_mail.cc
  void take_mail(std::vector<Arrival>& arrivals);
  void take_mail_of(ShmLink& link, uint64_t limit, std::vector<Arrival>& arrivals);
  bool mail_is_here() const;
  bool look_for_mail(std::chrono::nanoseconds patience) const;
  void sleep(std::chrono::nanoseconds patience);

  void flush_crowded();
  void look_at_sockets(std::vector<Arrival>& arrivals);
  void handle_events(std::vector<Arrival>& arrivals);
  void receive(ShmLink& link, int limit, std::vector<Arrival>& arrivals);
  void take(ShmLink& link, Received& frame, std::vector<Arrival>& arrivals);
  void deliver(ShmLink& link, Message&& message, std::vector<Arrival>& arrivals);
  void lose(ShmLink& link, const std::string& reason, std::vector<Arrival>& arrivals);

  ShmSide side_;
  Rank rank_;
  int32_t world_;
  std::string group_;
  Listener listener_;
  std::vector<std::unique_ptr<ShmLink>> links_;      // by rank; null: not to be reached
  std::chrono::steady_clock::time_point looked_at_;  // the sockets
  std::atomic<bool> connected_{false};
};

}  // namespace hybridengine
