// Copier: moves the bytes of a run, within this process and between it and its peers, and gives
// tickets.
//
// What is submitted completes in order. What follows from it may be said only once its ticket is
// done: that a part has landed, that a slot is free, that a source may change. On the host the
// bytes have moved when submit() returns, so every ticket is done at once; where a device copies
// them they are done later. A list need not stay longer than the call.
//
// What it is not: aware of parts, slots, or whom to tell. Everything that the engine does with the
// memory of peers is done here. Called by Run.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "device/copy.h"
#include "engine/fold.h"

namespace hybridengine {

/// The elements of a box, from one end to the other.
struct StridedCopy {
  StridedEnd src, dst;
  const Box* box = nullptr;  // of which only the size counts; it must stay until the copy is done
};

using CopyList = std::vector<StridedCopy>;

class Copier {
 public:
  /// What was submitted, as the link to `peer` numbers it; what was done at once has number 0.
  struct Ticket {
    Rank peer = 0;
    uint64_t number = 0;
    auto operator<=>(const Ticket&) const = default;
  };

  explicit Copier(Communicator& comm) : comm_(comm) {}

  Ticket submit(const CopyList& list);
  Ticket submit(const FoldList& list);

  /// Whether what goes to `peer` is put: its regions are not mapped here. Never without payload.
  bool is_put_to(Rank peer) const {
    return comm_.fabric().caps().payload && !comm_.link(peer).caps().maps;
  }
  /// Whether this rank and `peer` reach each other's ordinary memory.
  bool reaches(Rank peer) const;
  /// Between this rank's memory and that of a peer: a region that it has offered, or, where it
  /// reaches(), any. `landed` rides on the put. Throw TransportError where the peer is gone or the
  /// memory is not its own.
  Ticket get(Rank peer, std::span<const RemoteRun> runs);
  Ticket put(Rank peer, std::span<const RemoteRun> runs, const Message& landed);

  /// Memory to pack what is put: kRooms of so many bytes. Throws UsageError where there is none.
  void reserve_rooms(size_t bytes);
  bool has_room() const { return !rooms_.empty(); }
  /// Of those, until it is put; null while all are in use.
  std::byte* take_room();
  /// The first bytes of a room, to where the peer granted them. The room is free again once that
  /// is done.
  Ticket put_packed(Rank peer, std::byte* room, const RegionRef& place, size_t bytes,
                    const Message& landed);

  bool done(const Ticket& ticket) const { return !under_way_.contains(ticket); }
  /// Whether something ends by a word of a peer's link: heard().
  bool waits_for_links() const { return !under_way_.empty(); }
  /// An arrival that says that a put or a get is done.
  void heard(const Arrival& arrival);

 private:
  static constexpr size_t kRooms = 2;  // one is put while the next is packed

  Ticket submitted(Rank peer, hybridengine::Ticket of_link, std::byte* room = nullptr);

  Communicator& comm_;
  std::map<Ticket, std::byte*> under_way_;  // with the room that is free then, or null
  std::vector<std::byte*> rooms_;           // that are free
};

/// `bytes` of the memory that a peer granted at `place`, as mapped here. Throws TransportError
/// where the peer has not offered it, and one that says `what` where they go beyond its end.
std::byte* granted_memory(Communicator& comm, Rank peer, const RegionRef& place, size_t bytes,
                          const char* what = "a peer grants a slot that no memory has");

}  // namespace hybridengine
