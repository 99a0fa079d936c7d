// Memory of local tensors, and where a box of one lies in it.
//
// Layouts give places as if local tensors were contiguous. The caller's tensor may be anything
// (a transposed parameter, a column slice): resolve() finds the same elements in it.
#pragma once

#include <string>
#include <vector>

#include "device/copy.h"
#include "layout/layout.h"

namespace hybridengine {

/// The memory of one local tensor, as the caller holds it. Strides in elements.
struct TensorMemory {
  std::byte* data = nullptr;
  Shape shape;
  Dims strides{};
  Dtype dtype = Dtype::kFloat32;

  bool present() const { return data != nullptr || shape.num_elems() == 0; }
};

bool is_contiguous(const TensorMemory& memory);

/// Throws UsageError unless `memory` has the shape and element type of `local`, naming both, the
/// tensor and its rank.
void check_memory(const Layout& layout, const LocalTensor& local, const TensorMemory& memory);

/// The box that lies at `place` of the local tensor, in its memory. Throws UsageError where the
/// memory is strided so that the box does not lie along its dims.
StridedEnd resolve(const TensorMemory& memory, const LocalPlace& place, const Box& box);

}  // namespace hybridengine
