#include "engine/part_memory.h"

#include "base/hash.h"
#include "engine/runs.h"

namespace hybridengine {

PartMemory::PartMemory(Routine& routine, std::vector<TensorMemory> tensors)
    : routine_(routine),
      tensors_(std::move(tensors)),
      program_(routine.program_for(tensors_)),
      copies_(routine.copies()) {}

std::span<const TensorMemory> PartMemory::sources() const {
  return std::span(tensors_).first(program_.num_sources());
}

std::span<const TensorMemory> PartMemory::targets() const {
  return std::span(tensors_).subspan(program_.num_sources());
}

void PartMemory::provide(int32_t target, const TensorMemory& memory) {
  program_.check_target(target, memory);
  tensors_[program_.num_sources() + target] = memory;
}

void PartMemory::clear(size_t num_copies) {
  copies_.clear();
  copies_.reserve(num_copies);
}

const CopyList& PartMemory::pack(const Part& part, std::byte* packed) {
  clear(part.copies.size());
  for (const Copy& copy : part.copies)
    copies_.push_back({at(copy.src), packed_end(copy, packed), &copy.box});
  return copies_;
}

const CopyList& PartMemory::unpack(const Part& part, std::byte* packed) {
  clear(part.copies.size());
  for (const Copy& copy : part.copies)
    copies_.push_back({packed_end(copy, packed), at(copy.dst), &copy.box});
  return copies_;
}

size_t PartMemory::segment_bytes(Rank peer) const {
  return static_cast<size_t>(routine_.offsets_of_peer(peer).back());
}

const CopyList& PartMemory::place(const Part& part, std::byte* segment) {
  clear(part.copies.size());
  const std::vector<int64_t>& offsets = routine_.offsets_of_peer(part.dst);
  const int32_t num_sources = program_.num_sources_of(part.dst);
  for (const Copy& copy : part.copies) {
    const int64_t start = offsets[copy.dst.tensor - num_sources];
    const StridedEnd target{segment + start + copy.dst.offset_bytes, copy.dst.strides,
                            copy.dst.dtype};
    copies_.push_back({at(copy.src), target, &copy.box});
  }
  return copies_;
}

const CopyList& PartMemory::keep(std::span<const Copy> copies) {
  clear(copies.size());
  for (const Copy& copy : copies) {
    const StridedEnd source = at(copy.src), target = at(copy.dst);
    if (source.data == target.data) continue;  // in place: an all_gather from its own output
    copies_.push_back({source, target, &copy.box});
  }
  return copies_;
}

const FoldList& PartMemory::fold(const Fold& fold,
                                 const std::function<std::byte*(int32_t)>& packed) {
  folds_.clear();
  for (const FoldBox& box : fold.boxes) {
    const auto copy_of = [&](const FoldBox::Contribution& each) -> const Copy& {
      return program_.parts()[each.part].copies[each.copy];
    };
    const Copy& first = copy_of(box.contributions.front());
    folds_.steps.push_back({at(first.dst), first.op, first.box, box.contributions.size()});
    for (const FoldBox::Contribution& each : box.contributions) {
      const Copy& copy = copy_of(each);
      const bool own = program_.parts()[each.part].local();
      folds_.contributions.push_back(own ? at(copy.src) : packed_end(copy, packed(each.part)));
    }
  }
  return folds_;
}

std::span<const RemoteRun> PartMemory::runs_from_peer(const Part& part) {
  return runs(part, part.src, &Copy::dst, &Copy::src);
}

std::span<const RemoteRun> PartMemory::runs_to_peer(const Part& part) {
  return runs(part, part.dst, &Copy::src, &Copy::dst);
}

std::span<const RemoteRun> PartMemory::runs_to_segment(const Part& part, uint64_t region) {
  runs_.clear();
  const std::vector<int64_t>& offsets = routine_.offsets_of_peer(part.dst);
  const int32_t num_sources = program_.num_sources_of(part.dst);
  for (const Copy& copy : part.copies) {
    const int64_t start = offsets[copy.dst.tensor - num_sources] + copy.dst.offset_bytes;
    add_runs(copy, at(copy.src), {region, static_cast<uint64_t>(start)}, copy.dst.strides);
  }
  return runs_;
}

/// Those of a copy between `here` and what lies at `there` with those strides.
void PartMemory::add_runs(const Copy& copy, const StridedEnd& here, const RegionRef& there,
                          const Dims& their_strides) {
  const Dims ends[] = {here.strides, their_strides};
  const auto elem_bytes = static_cast<int64_t>(dtype_bytes(here.dtype));
  for_each_run(ends, copy.box, [&](std::span<const int64_t> offsets, int64_t elems) {
    runs_.push_back({{there.region, there.offset + static_cast<uint64_t>(offsets[1] * elem_bytes)},
                     here.data + offsets[0] * elem_bytes,
                     static_cast<size_t>(elems * elem_bytes)});
  });
}

/// `mine` is this rank's end of a copy.
std::span<const RemoteRun> PartMemory::runs(const Part& part, Rank peer, End Copy::* mine,
                                            End Copy::* theirs) {
  runs_.clear();
  for (const Copy& copy : part.copies) {
    const auto elem_bytes = static_cast<int64_t>(dtype_bytes((copy.*mine).dtype));
    const LocalPlace place{(copy.*theirs).offset_bytes / elem_bytes, (copy.*theirs).strides};
    const StridedEnd here = at(copy.*mine);
    const StridedEnd there =
        resolve(routine_.tables().of_peer(peer, (copy.*theirs).tensor), place, copy.box);
    add_runs(copy, here, {0, reinterpret_cast<uint64_t>(there.data)}, there.strides);
  }
  return runs_;
}

uint64_t PartMemory::digest_of_source(const Part& part, const std::byte* packed) const {
  return digest(part, &Copy::src, packed);
}

uint64_t PartMemory::digest_of_target(const Part& part, const std::byte* packed) const {
  return digest(part, &Copy::dst, packed);
}

uint64_t PartMemory::digest(const Part& part, End Copy::* end, const std::byte* packed) const {
  if (!part.placed || !part.plain)
    return digest_of({reinterpret_cast<const char*>(packed), static_cast<size_t>(part.num_bytes)});
  Digest digest;
  for (const Copy& copy : part.copies)
    digest_strided(at(copy.*end), copy.box.ndim, copy.box.size, digest);
  return digest.value();
}

}  // namespace hybridengine
