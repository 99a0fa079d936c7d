// The part of a run that touches payload: packing, unpacking, direct placement, local copies.
#include "base/error.h"
#include "base/hash.h"
#include "base/trace.h"
#include "engine/run.h"
#include "engine/stopwatch.h"

namespace hybridengine {
namespace {

uint64_t digest_of_bytes(const std::byte* data, int64_t bytes) {
  return digest_of({reinterpret_cast<const char*>(data), static_cast<size_t>(bytes)});
}

}  // namespace

StridedEnd Run::at(const End& end) const { return end_at(tensors_, end); }

StridedEnd Run::contribution(int32_t id, const Copy& copy) const {
  return part_of(id).local() ? at(copy.src) : packed_end(copy, incoming_[id].base);
}

void Run::send_part(int32_t id, const Message& granted) {
  const Part& part = part_of(id);
  TraceSpan span(Subsystem::kEngine, "pack");
  span.arg("bucket", part.name).arg("peer", part.dst).arg("bytes", part.num_bytes);
  routine_.in_place()[id] = granted.direct;
  Message landed = message(MessageKind::kLanded, id);
  if (caps().payload) {
    const Stopwatch watch(report_.pack_seconds);
    std::byte* window = nullptr;
    if (by_address(granted)) {
      write_to_peer(part);
    } else if (granted.direct) {
      place_directly(part, comm_.transport().map(part.dst, granted.place.region));
    } else {
      window = slot_of_peer(part, granted.place);
      pack(part, window);
    }
    if (routine_.options().verify) landed.digest = digest_of_source(part, window);
  }
  comm_.send(part.dst, landed);
  note_sent(id);
}

std::byte* Run::slot_of_peer(const Part& part, const RegionRef& place) {
  const Span region = comm_.transport().map(part.dst, place.region);
  const auto needed = static_cast<size_t>(part.num_bytes);
  if (place.offset > region.bytes || needed > region.bytes - place.offset)
    throw TransportError("a peer grants a slot that no memory has",
                         str_cat("rank ", part.dst, ", offset ", place.offset, " of ", region.bytes,
                                 ", bucket of ", needed, " bytes"),
                         "Do all ranks run the same version?");
  return region.data + place.offset;
}

void Run::place_directly(const Part& part, Span segment) {
  const std::vector<int64_t>& offsets = routine_.offsets_of_peer(part.dst);
  const auto needed = static_cast<size_t>(offsets.back());
  if (segment.bytes < needed)
    throw TransportError(
        "a peer grants memory that its tensors do not fit into",
        str_cat("rank ", part.dst, ", segment of ", segment.bytes, " bytes, tensors of ", needed),
        "Do all ranks run the same version?");
  const int32_t num_sources = program_.num_sources_of(part.dst);
  for (const Copy& copy : part.copies) {
    const int64_t start = offsets[copy.dst.tensor - num_sources];
    const StridedEnd target{segment.data + start + copy.dst.offset_bytes, copy.dst.strides,
                            copy.dst.dtype};
    copy_strided(at(copy.src), target, copy.box.ndim, copy.box.size);
  }
}

void Run::pack(const Part& part, std::byte* window) {
  for (const Copy& copy : part.copies)
    copy_strided(at(copy.src), packed_end(copy, window), copy.box.ndim, copy.box.size);
}

void Run::receive_part(int32_t id, const Message& landed) {
  const Part& part = part_of(id);
  const int32_t slot = incoming_[id].slot;
  TraceSpan span(Subsystem::kEngine, "unpack");
  span.arg("bucket", part.name).arg("peer", part.src).arg("bytes", part.num_bytes);
  if (caps().payload) {
    const Stopwatch watch(report_.unpack_seconds);
    std::byte* base = incoming_[id].base;
    if (slot >= 0) unpack(part, base);
    if (routine_.options().verify) compare_digests(id, landed.digest, base);
  }
  if (slot >= 0) {
    free_slots_.push_back(slot);
    ++slots_landed_;
  }
  note_received(id);
}

void Run::unpack(const Part& part, std::byte* slot) {
  for (const Copy& copy : part.copies)
    copy_strided(packed_end(copy, slot), at(copy.dst), copy.box.ndim, copy.box.size);
}

// Without a conversion the digest covers the elements where they come from and where they end up;
// with one it covers the bytes that travelled.

uint64_t Run::digest_of_source(const Part& part, const std::byte* window) const {
  if (!part.placed || !part.plain) return digest_of_bytes(window, part.num_bytes);
  Digest digest;
  for (const Copy& copy : part.copies)
    digest_strided(at(copy.src), copy.box.ndim, copy.box.size, digest);
  return digest.value();
}

void Run::compare_digests(int32_t id, uint64_t theirs, const std::byte* slot) {
  const Part& part = part_of(id);
  const bool in_places = part.placed && part.plain;
  Digest digest;
  for (const Copy& copy : part.copies)
    if (in_places) digest_strided(at(copy.dst), copy.box.ndim, copy.box.size, digest);
  const uint64_t found = in_places ? digest.value() : digest_of_bytes(slot, part.num_bytes);
  if (theirs != found)
    throw TransportError(
        "a bucket arrived damaged",
        str_cat("bucket ", part.name / kNumManners, " from rank ", part.src, " to rank ", part.dst,
                ", ", part.num_bytes, " bytes, digests ", theirs, " and ", found),
        "Do not use the destination tensors; check the memory of both hosts.");
  ++report_.verified_buckets;
}

void Run::copy_within(const Copy& copy) {
  report_.local_bytes += copy.wire_bytes();
  if (!caps().payload) return;
  const StridedEnd source = at(copy.src), target = at(copy.dst);
  if (source.data == target.data) return;  // in place: an all_gather from its own output
  copy_strided(source, target, copy.box.ndim, copy.box.size);
}

}  // namespace hybridengine
