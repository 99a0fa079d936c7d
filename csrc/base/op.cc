#include "base/op.h"

#include <array>

#include "base/error.h"

namespace hybridengine {
namespace {

constexpr std::array<std::string_view, kNumOps> kNames{"copy", "sum", "mean", "min", "max"};

}  // namespace

std::string_view op_name(Op op) { return kNames[static_cast<size_t>(op)]; }

Op parse_reduction(std::string_view name) {
  for (size_t at = 1; at < kNames.size(); ++at)
    if (kNames[at] == name) return static_cast<Op>(at);
  throw UsageError(str_cat("'", name, "' is not a reduction"), "", "Use sum, mean, min or max.");
}

void check_reducible(Op op, Dtype dtype) {
  if (op == Op::kCopy) return;
  if (dtype == Dtype::kBool || (is_floating(dtype) && dtype_bytes(dtype) < 2))
    throw UsageError(str_cat("cannot reduce ", dtype_name(dtype)), "",
                     "Reduce float64, float32, float16, bfloat16 or an integer type.");
  if (op == Op::kMean && !is_floating(dtype))
    throw UsageError(str_cat("cannot take the mean of ", dtype_name(dtype)),
                     "a mean of integers is no integer",
                     "Take the sum and divide it, or convert to a floating type first.");
}

}  // namespace hybridengine
