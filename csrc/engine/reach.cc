// Reaching: one end copies a part between its tensors and those of the other process, which lie
// where that rank's table of addresses says.
//
// Each run (see runs.h) is one entry of a system call.
#include "base/error.h"
#include "base/trace.h"
#include "engine/run.h"
#include "engine/runs.h"
#include "engine/stopwatch.h"

namespace hybridengine {

StridedEnd Run::at_peer(Rank peer, const End& end, const Box& box) const {
  const auto elem_bytes = static_cast<int64_t>(dtype_bytes(end.dtype));
  return resolve(routine_.tables().of_peer(peer, end.tensor),
                 {end.offset_bytes / elem_bytes, end.strides}, box);
}

/// Fills runs_ with those of a part, `mine` being this rank's end of a copy.
void Run::find_runs(const Part& part, Rank peer, End Copy::* mine, End Copy::* theirs) {
  runs_.clear();
  for (const Copy& copy : part.copies) {
    const StridedEnd here = at(copy.*mine), there = at_peer(peer, copy.*theirs, copy.box);
    const Dims ends[] = {here.strides, there.strides};
    const auto elem_bytes = static_cast<int64_t>(dtype_bytes(here.dtype));
    for_each_run(ends, copy.box, [&](std::span<const int64_t> offsets, int64_t elems) {
      runs_.push_back({reinterpret_cast<uint64_t>(there.data + offsets[1] * elem_bytes),
                       here.data + offsets[0] * elem_bytes,
                       static_cast<size_t>(elems * elem_bytes)});
    });
  }
}

/// A peer that is gone may have gone because of a third one: that one is to be named.
template <class Act>
void Run::reach(const Act& act) {
  try {
    act(comm_.transport());
  } catch (const TransportError&) {
    comm_.hear_reason();
    throw;
  }
}

bool Run::pull_next() {
  if (pulls_.empty()) return false;
  const auto [id, digest] = pulls_.front();
  pulls_.pop_front();
  pull(part_of(id));
  if (routine_.options().verify) compare_digests(id, digest, nullptr);
  note_received(id);
  comm_.send(part_of(id).src, message(MessageKind::kReleased, id));
  comm_.made_progress();
  return true;
}

void Run::pull(const Part& part) {
  TraceSpan span(Subsystem::kEngine, "pull");
  span.arg("peer", part.src).arg("bytes", part.num_bytes);
  const Stopwatch watch(report_.unpack_seconds);
  find_runs(part, part.src, &Copy::dst, &Copy::src);
  reach([&](Transport& memory) { memory.read(part.src, runs_); });
}

void Run::write_to_peer(const Part& part) {
  find_runs(part, part.dst, &Copy::src, &Copy::dst);
  reach([&](Transport& memory) { memory.write(part.dst, runs_); });
}

}  // namespace hybridengine
