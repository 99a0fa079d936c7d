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
  return comm_.fabric().caps().pull && comm_.link(peer).reaches();
}

Copier::Ticket Copier::read(Rank peer, std::span<const RemoteRun> runs) {
  comm_.get(peer, runs);
  return completed();
}

Copier::Ticket Copier::write(Rank peer, std::span<const RemoteRun> runs) {
  comm_.put(peer, runs);
  return completed();
}

std::byte* granted_memory(Communicator& comm, Rank peer, const RegionRef& place, size_t bytes,
                          const char* what) {
  const Span region = comm.link(peer).map(place.region);
  if (place.offset > region.bytes || bytes > region.bytes - place.offset)
    throw TransportError(
        what, str_cat("rank ", peer, ", ", bytes, " bytes at ", place.offset, " of ", region.bytes),
        "Do all ranks run the same version?");
  return region.data + place.offset;
}

}  // namespace hybridengine
