// Runs: the stretches of a box that are contiguous at all of its ends.
//
// An end is given by its strides, in elements. Called by engine/.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "layout/box.h"

namespace hybridengine {

/// How many leading dims of a box step from run to run where its ends have these strides.
int outer_dims(std::span<const Dims> ends, const Box& box);

/// Number of runs.
int64_t count_runs(std::span<const Dims> ends, const Box& box);

/// Calls `found(offsets, elements)` for each run, in row-major order; `offsets` are those of the
/// run at each end, in elements from the first of the box.
template <class Found>
void for_each_run(std::span<const Dims> ends, const Box& box, const Found& found) {
  const int outer = outer_dims(ends, box);
  int64_t run = 1, count = 1;
  for (int dim = 0; dim < box.ndim; ++dim) (dim < outer ? count : run) *= box.size[dim];
  Dims index{};
  std::vector<int64_t> offsets(ends.size());
  for (int64_t i = 0; i < count; ++i) {
    for (size_t end = 0; end < ends.size(); ++end) {
      offsets[end] = 0;
      for (int dim = 0; dim < outer; ++dim) offsets[end] += index[dim] * ends[end][dim];
    }
    found(std::span<const int64_t>(offsets), run);
    for (int dim = outer - 1; dim >= 0 && ++index[dim] == box.size[dim]; --dim) index[dim] = 0;
  }
}

}  // namespace hybridengine
