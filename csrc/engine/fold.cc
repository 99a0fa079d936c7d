#include "engine/fold.h"

#include <algorithm>
#include <map>
#include <span>
#include <tuple>

#include "device/reduce.h"
#include "engine/runs.h"

namespace hybridengine {
namespace {

constexpr int64_t kBlockElems = 16 << 10;  // that are combined before they are rounded

StridedEnd contiguous(std::byte* data, Dtype dtype) { return {data, Dims{1}, dtype}; }

/// Combines blocks; where the result has another type than the contributions it is rounded from
/// their accumulator.
class Folder {
 public:
  Folder(Op op, Dtype src, Dtype dst)
      : op_(op), src_(src), dst_(dst), accumulator_(accumulator_dtype(src)) {
    if (src != dst && accumulator_ != dst) scratch_.resize(kBlockElems * dtype_bytes(accumulator_));
  }

  /// A run of each contribution.
  void operator()(std::span<const std::byte*> srcs, std::byte* dst, int64_t elems) {
    if (scratch_.empty()) return combine(srcs, dst, elems);
    for (int64_t done = 0; done < elems; done += kBlockElems) {
      const int64_t block = std::min(kBlockElems, elems - done);
      combine(srcs, dst, block);
      for (const std::byte*& src : srcs) src += block * static_cast<int64_t>(dtype_bytes(src_));
      dst += block * static_cast<int64_t>(dtype_bytes(dst_));
    }
  }

 private:
  void combine(std::span<const std::byte* const> srcs, std::byte* dst, int64_t elems) {
    const int divisor = op_ == Op::kMean ? static_cast<int>(srcs.size()) : 1;
    if (src_ == dst_) return fold(reduce_op(op_), dst_, srcs, divisor, dst, elems);
    std::byte* sum = scratch_.empty() ? dst : scratch_.data();
    convert(srcs.front(), src_, sum, accumulator_, elems);
    for (const std::byte* src : srcs.subspan(1)) accumulate(reduce_op(op_), src_, src, sum, elems);
    const std::byte* const whole[] = {sum};
    if (divisor > 1) fold(ReduceOp::kSum, accumulator_, whole, divisor, sum, elems);
    if (sum != dst) convert(sum, accumulator_, dst, dst_, elems);
  }

  static void convert(const std::byte* src, Dtype from, std::byte* dst, Dtype to, int64_t elems) {
    copy_strided(contiguous(const_cast<std::byte*>(src), from), contiguous(dst, to), 1,
                 Dims{elems});
  }

  Op op_;
  Dtype src_, dst_, accumulator_;
  std::vector<std::byte> scratch_;
};

}  // namespace

void fold_boxes(const FoldList& list) {
  std::map<std::tuple<Op, Dtype, Dtype>, Folder> folders;
  std::vector<Dims> strides;
  std::vector<const std::byte*> srcs;
  std::span<const StridedEnd> left = list.contributions;
  for (const FoldStep& step : list.steps) {
    const auto ends = left.first(step.num_contributions);
    left = left.subspan(step.num_contributions);
    strides.assign(1, step.dst.strides);
    for (const StridedEnd& end : ends) strides.push_back(end.strides);
    const Dtype src = ends.front().dtype, dst = step.dst.dtype;
    Folder& folder = folders.try_emplace({step.op, src, dst}, step.op, src, dst).first->second;
    const auto src_bytes = static_cast<int64_t>(dtype_bytes(src));
    const auto dst_bytes = static_cast<int64_t>(dtype_bytes(dst));
    srcs.resize(ends.size());
    for_each_run(strides, step.box, [&](std::span<const int64_t> offsets, int64_t elems) {
      for (size_t i = 0; i < ends.size(); ++i) srcs[i] = ends[i].data + offsets[i + 1] * src_bytes;
      folder(srcs, step.dst.data + offsets[0] * dst_bytes, elems);
    });
  }
}

}  // namespace hybridengine
