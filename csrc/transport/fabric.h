// Fabric: all media of this rank, and which of them serves each peer.
//
// A rank has one endpoint of each medium that it may use, in order of preference, and shows the
// addresses of all in one blob. Of each pair, the lower rank's order decides: the first medium that
// both have and that reaches. So both ends choose the same without a word. Why it is none of the
// ones before, Fabric remembers.
//
// With one medium it costs nothing beyond it. With several, poll() looks at each in turn.
//
// What it is not: aware of calls and deadlines (comm/). Called by Communicator and, for links and
// staging, by engine/ and collective/. Threads as Endpoint.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/endpoint.h"

namespace hybridengine {

class Fabric {
 public:
  /// At least one endpoint, in order of preference, each of another family (registry.h).
  struct Member {
    std::string family;
    std::unique_ptr<Endpoint> endpoint;
  };
  Fabric(std::vector<Member> members, Rank rank, int32_t world);

  /// The names of its media: "cma", or "loopback,shm".
  const std::string& name() const { return name_; }
  /// What is true of every link; `pull`, of any.
  const Caps& caps() const { return caps_; }

  Blob address() const;
  /// As Endpoint::connect(), each peer by the medium that serves it. Throws TransportError with the
  /// reason of each medium where none reaches a peer, UsageError where an address is none.
  void connect(std::span<const Blob> addresses, std::chrono::steady_clock::time_point deadline,
               const std::function<void()>& between);

  bool connects(Rank peer) const { return peer != rank_ && choices_[peer].member >= 0; }
  /// Throws UsageError unless `peer` is connected.
  Link& link(Rank peer) const;
  /// The medium that serves `peer`, and why none of the better ones does ("" where there is none).
  const char* medium(Rank peer) const;
  const std::string& why_not_better(Rank peer) const;

  /// This rank's receive memory, at least `bytes`, kept from call to call. Asking again for no
  /// more gives the same region; asking for more gives a new one without the old bytes, and lets go
  /// of the old one. Null without Caps::payload, or for no bytes. Throws as Region::make.
  RegionPtr staging(size_t bytes, const std::function<void()>& between);
  /// The same for what is put together here before it is put to a peer.
  RegionPtr send_staging(size_t bytes, const std::function<void()>& between);

  // As of Endpoint, over all.
  void release_gone();
  void poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout);
  /// One for each medium: each carries them to the peers that it serves.
  std::vector<Signs*> own_signs() const;
  const Signs& signs(Rank peer) const { return *chosen(peer).signs(peer); }
  /// Empty unless one medium serves all.
  Span page(Rank rank) const;

 private:
  struct Choice {
    int32_t member = -1;
    std::string reasons;  // of those before
  };
  using Offer = std::map<std::string, Blob, std::less<>>;  // addresses by family

  Endpoint& chosen(Rank peer) const;
  Choice choose(Rank peer, const std::vector<std::string>& order, const Offer& theirs) const;
  void settle();
  RegionPtr grown(RegionPtr& kept, const char* purpose, size_t bytes,
                  const std::function<void()>& between) const;

  Rank rank_;
  int32_t world_;
  std::vector<Member> members_;
  std::string name_;
  Caps caps_;
  std::vector<Choice> choices_;  // by rank
  std::vector<Endpoint*> used_;  // that serve somebody; all before connect()
  RegionPtr staging_, send_staging_;
};

}  // namespace hybridengine
