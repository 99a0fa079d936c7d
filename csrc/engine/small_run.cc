// An entry: for each part a Header, and at its offset the packed part.
#include "engine/small_run.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/trace.h"
#include "engine/stopwatch.h"

namespace hybridengine {
namespace {

struct Header {
  uint64_t plan = 0;  // digest of the schedule
  uint32_t dst = 0;
  uint32_t name = 0;
  uint64_t offset = 0;  // of the part in the entry
  uint64_t next = 0;    // of the next header; 0: there is none
};
static_assert(sizeof(Header) <= kPartOverhead);

size_t aligned(size_t offset) { return (offset + alignof(Header) - 1) & ~(alignof(Header) - 1); }

class SmallRun {
 public:
  SmallRun(Communicator& comm, Routine& routine, std::vector<TensorMemory> tensors)
      : comm_(comm),
        routine_(routine),
        tensors_(std::move(tensors)),
        program_(routine.program_for(tensors_)) {}

  Report run(const std::vector<int32_t>& aliased) {
    // A rank that showed its entry and has failed since has no part in this any more.
    comm_.drain(arrivals_);
    const size_t num_bytes = show();
    copy_locally(aliased);
    {
      const Stopwatch watch(report_.wait_seconds);
      entries_ = comm_.exchange(num_bytes, "resharding little");
    }
    size_t open = program_.incoming().size();
    for (Rank peer = 0; peer < static_cast<Rank>(entries_.size()); ++peer)
      if (peer != comm_.rank()) open -= take(peer);
    if (open > 0)
      throw TransportError("peers did not show all that was to come",
                           str_cat(open, " parts are missing on rank ", comm_.rank()),
                           "Do all ranks run the same version?");
    return std::move(report_);
  }

 private:
  /// Packs what this rank sends; returns the size of its entry.
  size_t show() {
    const Stopwatch watch(report_.pack_seconds);
    const std::span<std::byte> entry = comm_.lane_entry();
    size_t end = 0;
    const std::vector<int32_t>& outgoing = program_.outgoing();
    for (size_t i = 0; i < outgoing.size(); ++i) {
      const Part& part = program_.parts()[outgoing[i]];
      Header header{routine_.options().plan, static_cast<uint32_t>(part.dst), part.name,
                    end + sizeof header, 0};
      const size_t next = aligned(header.offset + static_cast<size_t>(part.num_bytes));
      ensure(next <= entry.size(), "an entry is too small for a run that was to fit");
      if (i + 1 < outgoing.size()) header.next = next;
      std::memcpy(entry.data() + end, &header, sizeof header);
      for (const Copy& copy : part.copies)
        copy_strided(end_at(tensors_, copy.src), packed_end(copy, entry.data() + header.offset),
                     copy.box.ndim, copy.box.size);
      count_sent(report_, part.dst, part.payload_bytes);
      end = next;
    }
    return end;
  }

  void copy_locally(const std::vector<int32_t>& aliased) {
    const Stopwatch watch(report_.local_seconds);
    for (size_t target = 0; target < program_.local_copies().size(); ++target) {
      if (std::ranges::find(aliased, static_cast<int32_t>(target)) != aliased.end()) continue;
      for (const Copy& copy : program_.local_copies()[target]) {
        report_.local_bytes += copy.wire_bytes();
        copy_strided(end_at(tensors_, copy.src), end_at(tensors_, copy.dst), copy.box.ndim,
                     copy.box.size);
      }
    }
  }

  /// Unpacks what the entry of `peer` has for this rank; how many parts that were.
  size_t take(Rank peer) {
    const Stopwatch watch(report_.unpack_seconds);
    const std::span<const std::byte> entry = entries_[peer];
    size_t taken = 0;
    for (size_t at = 0; at + sizeof(Header) <= entry.size();) {
      Header header;
      std::memcpy(&header, entry.data() + at, sizeof header);
      routine_.check_plan_of(peer, header.plan);
      if (header.dst == static_cast<uint32_t>(comm_.rank())) {
        unpack(peer, header, entry);
        ++taken;
      }
      if (header.next <= at) break;
      at = header.next;
    }
    return taken;
  }

  void unpack(Rank peer, const Header& header, std::span<const std::byte> entry) {
    const int32_t id = program_.find(peer, comm_.rank(), header.name);
    const auto room = id < 0 ? 0 : static_cast<size_t>(program_.parts()[id].num_bytes);
    if (id < 0 || header.offset > entry.size() || room > entry.size() - header.offset)
      throw TransportError("a peer shows a part that fits no bucket",
                           str_cat("rank ", peer, ", part ", header.name),
                           "Do all ranks run the same version?");
    const Part& part = program_.parts()[id];
    std::byte* const base = const_cast<std::byte*>(entry.data()) + header.offset;
    for (const Copy& copy : part.copies)
      copy_strided(packed_end(copy, base), end_at(tensors_, copy.dst), copy.box.ndim,
                   copy.box.size);
    count_received(report_, peer, part.payload_bytes);
    ++report_.direct_buckets;
    ++report_.shown_buckets;
  }

  Communicator& comm_;
  Routine& routine_;
  std::vector<TensorMemory> tensors_;
  const Program& program_;
  Entries entries_;
  std::vector<Arrival> arrivals_;
  Report report_;
};

}  // namespace

Report run_small(Communicator& comm, Routine& routine, std::vector<TensorMemory> src,
                 std::vector<TensorMemory> dst, const std::vector<int32_t>& aliased) {
  const TraceSpan span(Subsystem::kEngine, "small run");
  double seconds = 0;
  Report report;
  {
    const Stopwatch watch(seconds);
    report =
        SmallRun(comm, routine, tensors_of(routine, std::move(src), std::move(dst))).run(aliased);
  }
  report.seconds = seconds;
  return report;
}

}  // namespace hybridengine
