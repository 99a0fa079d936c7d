// Pulling: the destination reads a bucket's items in the source's memory, straight into their
// places.
//
// Vocabulary: a *run* is a stretch of elements that is contiguous at both ends. Each run is one
// entry of a system call, so short runs make reading slow: such buckets go through staging instead.
#include <algorithm>

#include "base/trace.h"
#include "engine/execution.h"

namespace hybridengine {
namespace {

/// Below this, two copies through staging are faster than reading (measured, see bench/results).
constexpr int64_t kShortestMeanRun = 16 << 10;

/// The trailing dims of a box that are one stretch of memory at this end: their number of elements.
int64_t run_elems(const Dims& strides, const Box& box, int& outer_dims) {
  int64_t run = 1;
  outer_dims = box.ndim;
  while (outer_dims > 0 && (box.size[outer_dims - 1] == 1 || strides[outer_dims - 1] == run))
    run *= box.size[--outer_dims];
  return run;
}

/// Calls `found(offset in src, offset in dst, elements)` for each run, in row-major order.
template <class Found>
void for_each_run(const Dims& src, const Dims& dst, const Box& box, const Found& found) {
  int src_outer, dst_outer;
  run_elems(src, box, src_outer);
  run_elems(dst, box, dst_outer);
  const int outer = std::max(src_outer, dst_outer);
  int64_t run = 1, count = 1;
  for (int dim = 0; dim < box.ndim; ++dim) (dim < outer ? count : run) *= box.size[dim];
  Dims index{};
  for (int64_t i = 0; i < count; ++i) {
    int64_t src_offset = 0, dst_offset = 0;
    for (int dim = 0; dim < outer; ++dim) {
      src_offset += index[dim] * src[dim];
      dst_offset += index[dim] * dst[dim];
    }
    found(src_offset, dst_offset, run);
    for (int dim = outer - 1; dim >= 0 && ++index[dim] == box.size[dim]; --dim) index[dim] = 0;
  }
}

}  // namespace

/// Whether the runs of a bucket are long enough to be read by this rank.
bool Execution::pulls_well(const Bucket& bucket) const {
  int64_t runs = 0;
  for (const Item& item : bucket.items) {
    const Move& move = move_of(item);
    int outer = 0, dst_outer = 0;
    run_elems(schedule_->plan().src_place(move, item.box).strides, item.box, outer);
    run_elems(target_end(item).strides, item.box, dst_outer);
    int64_t count = 1;
    for (int dim = 0; dim < std::max(outer, dst_outer); ++dim) count *= item.box.size[dim];
    runs += count;
  }
  return bucket.num_bytes >= runs * kShortestMeanRun;
}

void Execution::pull(const Bucket& bucket) {
  TraceSpan span(Subsystem::kEngine, "pull");
  span.arg("peer", bucket.src).arg("bytes", bucket.num_bytes);
  const auto start = std::chrono::steady_clock::now();
  pull_runs_.clear();
  const int32_t peer_begin = schedule_->plan().src().locals_of(bucket.src).first;
  for (const Item& item : bucket.items) {
    const Move& move = move_of(item);
    const StridedEnd source =
        resolve(tables_.of_peer(bucket.src, schedule_->plan().src_local(move) - peer_begin),
                schedule_->plan().src_place(move, item.box), item.box);
    const StridedEnd target = target_end(item);
    const auto elem_bytes = static_cast<int64_t>(dtype_bytes(source.dtype));
    for_each_run(
        source.strides, target.strides, item.box, [&](int64_t from, int64_t to, int64_t elems) {
          pull_runs_.push_back(
              {reinterpret_cast<uint64_t>(source.data) + static_cast<uint64_t>(from * elem_bytes),
               target.data + to * elem_bytes, static_cast<size_t>(elems * elem_bytes)});
        });
  }
  comm_.transport().peer_memory()->read(bucket.src, pull_runs_);
  report_.unpack_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace hybridengine
