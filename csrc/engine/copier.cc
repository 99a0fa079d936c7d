#include "engine/copier.h"

#include "base/error.h"
#include "engine/slots.h"
#include "transport/checks.h"

namespace hybridengine {

Copier::Ticket Copier::submit(const CopyList& list) {
  for (const StridedCopy& copy : list)
    copy_strided(copy.src, copy.dst, copy.box->ndim, copy.box->size);
  return {};
}

Copier::Ticket Copier::submit(const FoldList& list) {
  fold_boxes(list);
  return {};
}

bool Copier::reaches(Rank peer) const {
  return comm_.fabric().caps().pull && comm_.link(peer).reaches();
}

Copier::Ticket Copier::get(Rank peer, std::span<const RemoteRun> runs) {
  return submitted(peer, comm_.get(peer, runs));
}

Copier::Ticket Copier::put(Rank peer, std::span<const RemoteRun> runs, const Message& landed) {
  return submitted(peer, comm_.put(peer, runs, landed));
}

Copier::Ticket Copier::put_packed(Rank peer, std::byte* room, const RegionRef& place, size_t bytes,
                                  const Message& landed) {
  const RemoteRun run{place, room, bytes};
  return submitted(peer, comm_.put(peer, std::span(&run, 1), landed), room);
}

Copier::Ticket Copier::submitted(Rank peer, hybridengine::Ticket of_link, std::byte* room) {
  if (!of_link.done()) return under_way_.emplace(Ticket{peer, of_link.number}, room).first->first;
  if (room != nullptr) rooms_.push_back(room);
  return {};
}

void Copier::heard(const Arrival& arrival) {
  const auto ended = under_way_.extract({arrival.peer, arrival.ticket});
  ensure(!ended.empty(), "something is done that was not submitted");
  if (ended.mapped() != nullptr) rooms_.push_back(ended.mapped());
}

void Copier::reserve_rooms(size_t bytes) {
  const size_t pitch = slot_pitch(bytes);
  const RegionPtr region =
      comm_.fabric().send_staging(bytes == 0 ? 0 : kRooms * pitch, comm_.options().between);
  if (!region) return;
  for (size_t room = 0; room < kRooms; ++room) rooms_.push_back(region->span().data + room * pitch);
}

std::byte* Copier::take_room() {
  if (rooms_.empty()) return nullptr;
  std::byte* const room = rooms_.back();
  rooms_.pop_back();
  return room;
}

std::byte* granted_memory(Communicator& comm, Rank peer, const RegionRef& place, size_t bytes,
                          const char* what) {
  return place_in(comm.link(peer).map(place.region), {place, nullptr, bytes}, peer, what);
}

}  // namespace hybridengine
