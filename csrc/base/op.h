// Op: what becomes of several values that meet in one element.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace hybridengine {

/// kCopy: one value, moved as it is. Otherwise the values of all contributors, taken in ascending
/// rank order; kMean divides their sum by their number.
enum class Op : uint8_t { kCopy, kSum, kMean, kMin, kMax };
inline constexpr uint8_t kNumOps = 5;

std::string_view op_name(Op op);

/// "sum", "mean", "min" or "max". Throws UsageError that lists them.
Op parse_reduction(std::string_view name);

/// Throws UsageError where values of `dtype` cannot be combined by `op`: bool and the floating
/// types of 8 bits by none, integers not by kMean.
void check_reducible(Op op, Dtype dtype);

}  // namespace hybridengine
