// Folding: contributions of several ranks become their result.
//
// All contributions to a part are taken at once, in ascending rank order: from slots, and from this
// rank's own memory where they lie. What comes out does not depend on where buckets and folds
// begin.
#include <algorithm>
#include <map>
#include <utility>

#include "base/trace.h"
#include "device/reduce.h"
#include "engine/run.h"
#include "engine/runs.h"
#include "engine/stopwatch.h"

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

void Run::receive_contribution(int32_t id, const Message& landed) {
  if (caps().payload && routine_.options().verify)
    compare_digests(id, landed.digest, incoming_[id].base);
  note_received(id);
  const int32_t fold = part_of(id).feeds;
  if (--folds_[fold].missing == 0) foldable_.push_back(fold);
}

bool Run::fold_next() {
  if (foldable_.empty()) return false;
  const int32_t id = foldable_.front();
  foldable_.pop_front();
  {
    TraceSpan span(Subsystem::kEngine, "fold");
    span.arg("fold", id);
    const Stopwatch watch(report_.unpack_seconds);
    if (caps().payload) fold(id);
  }
  finish_fold(id);
  return true;
}

void Run::fold(int32_t id) {
  std::map<std::pair<Dtype, Dtype>, Folder> folders;
  std::vector<Dims> strides;
  std::vector<StridedEnd> ends;
  std::vector<const std::byte*> srcs;
  for (const FoldBox& box : program_.folds()[id].boxes) {
    const auto copy_of = [&](const FoldBox::Contribution& each) -> const Copy& {
      return part_of(each.part).copies[each.copy];
    };
    const Copy& first = copy_of(box.contributions.front());
    const StridedEnd target = at(first.dst);
    strides.assign(1, target.strides);
    ends.clear();
    for (const FoldBox::Contribution& each : box.contributions) {
      ends.push_back(contribution(each.part, copy_of(each)));
      strides.push_back(ends.back().strides);
    }
    const auto [src_dtype, dst_dtype] = std::pair(first.src.dtype, first.dst.dtype);
    Folder& folder =
        folders.try_emplace({src_dtype, dst_dtype}, first.op, src_dtype, dst_dtype).first->second;
    const auto src_bytes = static_cast<int64_t>(dtype_bytes(src_dtype));
    const auto dst_bytes = static_cast<int64_t>(dtype_bytes(dst_dtype));
    srcs.resize(ends.size());
    for_each_run(strides, first.box, [&](std::span<const int64_t> offsets, int64_t elems) {
      for (size_t i = 0; i < ends.size(); ++i) srcs[i] = ends[i].data + offsets[i + 1] * src_bytes;
      folder(srcs, target.data + offsets[0] * dst_bytes, elems);
    });
  }
}

/// Frees what the fold held, and lets its result go.
void Run::finish_fold(int32_t id) {
  FoldState& state = folds_[id];
  const Fold& fold = program_.folds()[id];
  state.folded = true;
  ++folded_;
  if (state.slot >= 0) {
    free_slots_.push_back(state.slot);
    ++slots_landed_;
  }
  for (const int32_t part : fold.kept)
    for (const Copy& copy : part_of(part).copies) copy_within(copy);
  if (caps().pull)
    for (const int32_t part : fold.outgoing) announce_ready(part);
  for (const auto& [part, granted] : std::exchange(state.granted, {})) send_part(part, granted);
  comm_.made_progress();
}

}  // namespace hybridengine
