// Pulling: the destination reads a bucket's items in the source's memory, straight into their
// places.
//
// Each run (see runs.h) is one entry of a system call, so short runs make reading slow: such
// buckets go through staging instead.
#include "base/error.h"
#include "base/trace.h"
#include "engine/execution.h"
#include "engine/runs.h"

namespace hybridengine {
namespace {

/// Below this, two copies through staging are faster than reading (measured, see bench/results).
constexpr int64_t kShortestMeanRun = 16 << 10;

}  // namespace

/// Whether the runs of a bucket are long enough to be read by this rank.
bool Execution::pulls_well(const Bucket& bucket) const {
  int64_t runs = 0;
  for (const Item& item : bucket.items) {
    const Dims ends[] = {schedule_->plan().src_place(move_of(item), item.box).strides,
                         target_end(item).strides};
    runs += count_runs(ends, item.box);
  }
  return bucket.num_bytes >= runs * kShortestMeanRun;
}

/// Where an item lies in the memory of its source, another rank.
StridedEnd Execution::remote_end(const Item& item) const {
  const Plan& plan = schedule_->plan();
  const Move& move = move_of(item);
  const auto [src_begin, src_end] = plan.src().locals_of(move.src);
  const int32_t local =
      move.step == 0
          ? plan.src_local(move) - src_begin
          : plan.src_local(move) - plan.dst().locals_of(move.src).first + (src_end - src_begin);
  return resolve(tables_.of_peer(move.src, local), plan.src_place(move, item.box), item.box);
}

/// A peer that is gone may have gone because of a third one: that one is to be named.
void Execution::read_peer(Rank peer, std::span<const RemoteRun> runs) {
  try {
    comm_.transport().peer_memory()->read(peer, runs);
  } catch (const TransportError&) {
    comm_.hear_reason();
    throw;
  }
}

void Execution::pull(const Bucket& bucket) {
  TraceSpan span(Subsystem::kEngine, "pull");
  span.arg("peer", bucket.src).arg("bytes", bucket.num_bytes);
  const auto start = std::chrono::steady_clock::now();
  pull_runs_.clear();
  for (const Item& item : bucket.items) {
    const StridedEnd source = remote_end(item), target = target_end(item);
    const Dims ends[] = {source.strides, target.strides};
    const auto elem_bytes = static_cast<int64_t>(dtype_bytes(source.dtype));
    for_each_run(ends, item.box, [&](std::span<const int64_t> offsets, int64_t elems) {
      pull_runs_.push_back({reinterpret_cast<uint64_t>(source.data + offsets[0] * elem_bytes),
                            target.data + offsets[1] * elem_bytes,
                            static_cast<size_t>(elems * elem_bytes)});
    });
  }
  read_peer(bucket.src, pull_runs_);
  report_.unpack_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace hybridengine
