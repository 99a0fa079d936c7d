#include "engine/copier.h"

#include "base/error.h"

namespace hybridengine {

Copier::Ticket Copier::submit(const CopyList& list) {
  for (const StridedCopy& copy : list) copy_strided(copy.src, copy.dst, copy.ndim, copy.size);
  return completed();
}

Copier::Ticket Copier::submit(const FoldList& list) {
  fold_boxes(list);
  return completed();
}

bool Copier::reaches(Rank peer) const {
  return comm_.transport().caps().pull && comm_.transport().readable(peer);
}

/// A peer that is gone may have gone because of a third one: that one is to be named.
template <class Act>
Copier::Ticket Copier::reach(const Act& act) {
  try {
    act(comm_.transport());
  } catch (const TransportError&) {
    comm_.hear_reason();
    throw;
  }
  return completed();
}

Copier::Ticket Copier::read(Rank peer, std::span<const RemoteRun> runs) {
  return reach([&](Transport& memory) { memory.read(peer, runs); });
}

Copier::Ticket Copier::write(Rank peer, std::span<const RemoteRun> runs) {
  return reach([&](Transport& memory) { memory.write(peer, runs); });
}

std::byte* granted_memory(Communicator& comm, Rank peer, const RegionRef& place, size_t bytes,
                          const char* what) {
  const Span region = comm.transport().map(peer, place.region);
  if (place.offset > region.bytes || bytes > region.bytes - place.offset)
    throw TransportError(
        what, str_cat("rank ", peer, ", ", bytes, " bytes at ", place.offset, " of ", region.bytes),
        "Do all ranks run the same version?");
  return region.data + place.offset;
}

}  // namespace hybridengine
