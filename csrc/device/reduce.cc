#include "device/reduce.h"

#include <array>

#include "base/error.h"
#include "device/isa.h"

namespace hybridengine {
namespace {

constexpr std::array<std::string_view, kNumReduceOps> kOpNames{"sum", "min", "max"};

size_t index(ReduceOp op) { return static_cast<size_t>(op); }
size_t index(Dtype dtype) { return static_cast<size_t>(dtype); }

void check_dtype(Dtype dtype) {
  if (loops().reduce.finish[index(dtype)] != nullptr) return;
  throw UsageError(str_cat("cannot reduce ", dtype_name(dtype)), "",
                   "Reduce float64, float32, float16, bfloat16 or an integer type.");
}

void check_divisor(Dtype dtype, int divisor) {
  if (divisor == 1 || (divisor > 1 && is_floating(dtype))) return;
  throw UsageError(str_cat("cannot divide ", dtype_name(dtype), " by ", divisor), "",
                   "Divide floating types by the number of contributors, integers by 1.");
}

void check_sources(Dtype dtype, std::span<const std::byte* const> srcs, int divisor) {
  check_dtype(dtype);
  check_divisor(dtype, divisor);
  if (srcs.empty())
    throw UsageError("nothing to fold", "there are no sources", "Give at least one.");
}

}  // namespace

ReduceOp reduce_op(Op op) {
  if (op == Op::kMin) return ReduceOp::kMin;
  return op == Op::kMax ? ReduceOp::kMax : ReduceOp::kSum;
}

ReduceOp parse_reduce_op(std::string_view name) {
  for (size_t at = 0; at < kOpNames.size(); ++at)
    if (kOpNames[at] == name) return static_cast<ReduceOp>(at);
  throw UsageError(str_cat("'", name, "' is not a reduction"), "", "Use sum, min or max.");
}

Dtype accumulator_dtype(Dtype dtype) {
  check_dtype(dtype);
  return is_floating(dtype) && dtype_bytes(dtype) < 4 ? Dtype::kFloat32 : dtype;
}

void reduce(ReduceOp op, Dtype dtype, const std::byte* src, std::byte* dst, int64_t count) {
  check_dtype(dtype);
  loops().reduce.reduce[index(op)][index(dtype)](src, dst, count);
}

void accumulate(ReduceOp op, Dtype dtype, const std::byte* src, std::byte* accumulator,
                int64_t count) {
  check_dtype(dtype);
  loops().reduce.accumulate[index(op)][index(dtype)](src, accumulator, count);
}

void finish(Dtype dtype, const std::byte* accumulator, int divisor, std::byte* dst, int64_t count) {
  check_dtype(dtype);
  check_divisor(dtype, divisor);
  loops().reduce.finish[index(dtype)](accumulator, divisor, dst, count);
}

void fold(ReduceOp op, Dtype dtype, std::span<const std::byte* const> srcs, int divisor,
          std::byte* dst, int64_t count) {
  check_sources(dtype, srcs, divisor);
  loops().reduce.fold[index(op)][index(dtype)](srcs.data(), static_cast<int>(srcs.size()), divisor,
                                               dst, count);
}

void fold_twice(ReduceOp op, Dtype dtype, std::span<const std::byte* const> srcs, int divisor,
                std::byte* dst, std::byte* copy, int64_t count) {
  check_sources(dtype, srcs, divisor);
  loops().reduce.fold_twice[index(op)][index(dtype)](srcs.data(), static_cast<int>(srcs.size()),
                                                     divisor, dst, copy, count);
}

}  // namespace hybridengine
