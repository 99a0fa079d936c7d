// Strided copies on the host, with a conversion of element type on the way.
//
// The one loop behind pack, unpack, direct placement and local moves: a bucket is just a contiguous
// tensor. What it is not: asynchronous, or aware of buckets. Called by engine/.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dims.h"
#include "base/dtype.h"

namespace hybridengine {

class Digest;

/// One end of a copy: the address of the first element, and strides in elements per dim.
struct StridedEnd {
  std::byte* data = nullptr;
  Dims strides{};
  Dtype dtype = Dtype::kFloat32;
};

/// Copies `size` elements from `src` to `dst`, element by element in the logical index space,
/// rounding to nearest even where the type gets narrower. Values are torch's bit for bit, except
/// for the payload of a NaN; what is past the range of float8_e4m3fn becomes +-448
/// (kernels/convert.h). The ends must not overlap; addresses may be unaligned. Strides may be 0 or
/// negative on the source only. Converts between floating types; otherwise the dtypes must be
/// equal: UsageError.
void copy_strided(const StridedEnd& src, const StridedEnd& dst, int ndim, const Dims& size);

/// Feeds the elements of a strided box to `digest` in row-major order, as their bytes.
void digest_strided(const StridedEnd& src, int ndim, const Dims& size, Digest& digest);

}  // namespace hybridengine
