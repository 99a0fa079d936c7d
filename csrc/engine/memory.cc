#include "engine/memory.h"

#include "base/error.h"

namespace hybridengine {
namespace {

std::byte* address(const TensorMemory& memory, int64_t offset_elems) {
  return memory.data + offset_elems * static_cast<int64_t>(dtype_bytes(memory.dtype));
}

}  // namespace

bool is_contiguous(const TensorMemory& memory) {
  const Dims expected = memory.shape.contiguous_strides();
  for (int dim = 0; dim < memory.shape.ndim; ++dim)
    if (memory.shape.size[dim] > 1 && memory.strides[dim] != expected[dim]) return false;
  return true;
}

void check_memory(const Layout& layout, const LocalTensor& local, const TensorMemory& memory) {
  if (memory.shape != local.shape)
    throw UsageError(str_cat("local tensor '", layout.name_of(local), "' has a wrong shape"),
                     str_cat(memory.shape.to_string(), " on rank ", local.rank, ", ", layout.text(),
                             " has ", local.shape.to_string(), " there"),
                     "Pass the shard that this layout gives to this rank, or another layout.");
  if (memory.dtype != local.dtype)
    throw UsageError(str_cat("local tensor '", layout.name_of(local), "' has a wrong element type"),
                     str_cat(dtype_name(memory.dtype), " on rank ", local.rank, ", ", layout.text(),
                             " has ", dtype_name(local.dtype)),
                     "Convert it, or bind the layout to a spec of that type.");
}

StridedEnd resolve(const TensorMemory& memory, const LocalPlace& place, const Box& box) {
  if (is_contiguous(memory))
    return {address(memory, place.offset_elems), place.strides, memory.dtype};
  const Dims unit = memory.shape.contiguous_strides();
  Dims index{};
  int64_t left = place.offset_elems, offset = 0;
  for (int dim = 0; dim < memory.shape.ndim; ++dim) {
    index[dim] = left / unit[dim];
    left %= unit[dim];
    offset += index[dim] * memory.strides[dim];
  }
  StridedEnd end{address(memory, offset), {}, memory.dtype};
  for (int dim = 0; dim < box.ndim; ++dim) {
    if (box.size[dim] <= 1) continue;
    int home = 0;  // the outermost dim of the memory along which this dim of the box runs
    const auto runs_along = [&](int candidate) {
      const int64_t every = place.strides[dim] / unit[candidate];
      return place.strides[dim] % unit[candidate] == 0 && every > 0 &&
             index[candidate] + (box.size[dim] - 1) * every < memory.shape.size[candidate];
    };
    while (home < memory.shape.ndim && !runs_along(home)) ++home;
    if (home == memory.shape.ndim)
      throw UsageError("a strided tensor does not fit its layout's pieces",
                       str_cat("box ", box.to_string(), ", memory ", memory.shape.to_string()),
                       "Make it contiguous.");
    end.strides[dim] = place.strides[dim] / unit[home] * memory.strides[home];
  }
  return end;
}

}  // namespace hybridengine
