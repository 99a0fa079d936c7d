// Reductions of contiguous runs on the host: what the collectives do with what arrives.
//
// What it is not: aware of ranks; the caller fixes the order of the contributors, and with it the
// result. The same inputs in the same order give the same bits on every machine, NaN included
// (kernels/reduce.h), as long as threads keep the processor's default treatment of denormals.
//
// Floating types of 16 bits are accumulated in float32 and rounded once, at the end; float32,
// float64 and integers are their own accumulators. bool and the floating types of 8 bits cannot be
// reduced: UsageError. Addresses may be unaligned. Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/op.h"
#include "device/loops.h"

namespace hybridengine {

/// What the loops of an op do; a mean is a sum that finish() divides.
ReduceOp reduce_op(Op op);

/// "sum", "min" or "max". Throws UsageError that lists them.
ReduceOp parse_reduce_op(std::string_view name);

/// The type in which `dtype` is accumulated.
Dtype accumulator_dtype(Dtype dtype);

/// dst[i] = dst[i] op src[i], rounded once. The ends must not overlap.
void reduce(ReduceOp op, Dtype dtype, const std::byte* src, std::byte* dst, int64_t count);

/// accumulator[i] = accumulator[i] op src[i], where `src` is of `dtype` and the accumulator of
/// accumulator_dtype(dtype). An accumulator begins as the converted first contributor
/// (copy_strided). The ends must not overlap.
void accumulate(ReduceOp op, Dtype dtype, const std::byte* src, std::byte* accumulator,
                int64_t count);

/// dst[i] = accumulator[i] / divisor, rounded once. The divisor of integers must be 1; it is at
/// least 1: UsageError. The ends must not overlap.
void finish(Dtype dtype, const std::byte* accumulator, int divisor, std::byte* dst, int64_t count);

/// All of that at once: dst[i] = (srcs[0][i] op srcs[1][i] op ...) / divisor, rounded once, without
/// memory for an accumulator. At least one source: UsageError. `dst` may be one of the sources, but
/// not overlap with one otherwise.
void fold(ReduceOp op, Dtype dtype, std::span<const std::byte* const> srcs, int divisor,
          std::byte* dst, int64_t count);

/// fold() into two places that nobody reads soon, past the cache. stream_fence() (mask.h) must
/// follow. `dst` may be one of the sources; the ends must not overlap otherwise.
void fold_twice(ReduceOp op, Dtype dtype, std::span<const std::byte* const> srcs, int divisor,
                std::byte* dst, std::byte* copy, int64_t count);

}  // namespace hybridengine
