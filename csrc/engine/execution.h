// Execution: one rank's part of one run of a Schedule.
//
// Each incoming bucket is granted a place (a slot of this rank's staging, or the final places), in
// round order; the source packs into it and says it has landed; the destination unpacks and grants
// the slot again. At most kSlots slots exist, so memory is bounded and two ranks work on different
// buckets at the same time. The loop never blocks inside an action, so ranks cannot wait in a ring.
//
// What it is not: a planner. It fails where plan, layouts and memory do not fit. Called by bindings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/report.h"
#include "device/copy.h"
#include "schedule/schedule.h"

namespace hybridengine {

/// The memory of one local tensor, as the caller holds it. Strides in elements; any that cover
/// `shape` without overlap.
struct TensorMemory {
  std::byte* data = nullptr;
  Shape shape;
  Dims strides{};
  Dtype dtype = Dtype::kFloat32;
};

struct RunOptions {
  bool verify = false;  // digest of every bucket at both ends
};

/// Why advance() came back.
struct Event {
  enum class Kind : uint8_t {
    kDone,      // all of this rank's buckets are through
    kNeed,      // give the memory of destination tensor `local`, then advance again
    kFinished,  // destination tensor `local` is complete
  };
  Kind kind = Kind::kDone;
  int32_t local = -1;  // index into the destination layout's locals()
};

class Execution {
 public:
  /// `src` and `dst` are this rank's local tensors, in layout order; an entry of `dst` with a null
  /// address and elements is asked for when it is needed (kNeed). Tensors listed in `aliased` (indices
  /// of destination locals) are views of the source: nothing is copied into them. Throws UsageError
  /// naming the tensor where a shape or dtype is not the layout's.
  Execution(Communicator& comm, SchedulePtr schedule, std::vector<TensorMemory> src,
            std::vector<TensorMemory> dst, std::vector<int32_t> aliased, RunOptions options);

  /// Goes on until there is an event for the caller. kFinished is only reported for tensors that were
  /// asked for with kNeed. Throws as Communicator::wait does; the communicator is then dead.
  Event advance();
  void provide(int32_t local, const TensorMemory& memory);

  const Report& report() const { return report_; }

 private:
  // see execution.cc
};

}  // namespace hybridengine
