#include "engine/runs.h"

namespace hybridengine {

int outer_dims(std::span<const Dims> ends, const Box& box) {
  int most = 0;
  for (const Dims& strides : ends) {
    int64_t run = 1;
    int outer = box.ndim;
    while (outer > 0 && (box.size[outer - 1] == 1 || strides[outer - 1] == run))
      run *= box.size[--outer];
    most = std::max(most, outer);
  }
  return most;
}

int64_t count_runs(std::span<const Dims> ends, const Box& box) {
  int64_t count = 1;
  for (int dim = 0; dim < outer_dims(ends, box); ++dim) count *= box.size[dim];
  return count;
}

}  // namespace hybridengine
