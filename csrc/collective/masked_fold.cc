// The part of a masked reduction that adds: what an owner does with the contributions to its share.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "collective/entries.h"
#include "collective/masked.h"
#include "device/mask.h"
#include "device/reduce.h"

namespace hybridengine {

int MaskedReduction::divisor(int contributors) const {
  if (options_.op == MaskedOp::kSum) return 1;
  return options_.op == MaskedOp::kMean ? contributors : world_;
}

/// Results go to their place in `out`, and to `packed` where that is not null; what is needed to
/// send them comes back.
MaskedReduction::Result MaskedReduction::fold(const Stretch& stretch, Contributions& from,
                                              std::byte* packed) {
  const Tensor& tensor = tensors_[stretch.tensor];
  const int64_t entries = stretch.num_entries(tensor.width);
  std::byte* const own = cleared(own_bits_, entries);
  copy_bits(tensor.bits(), stretch.first_entry(tensor.width), entries, own);
  if (!payload_)
    std::ranges::fill(from, Contribution{cleared(absent_bits_, entries), nullptr, true});
  from[rank_] = {own, nullptr, false};
  Result result;
  result.bits = cleared(result_bits_, entries);
  for (const Contribution& each : from)
    result.contributed_elems += kept_elems(stretch, tensor.width, each.bits);
  if (tensor.width > 1)
    fold_entries(tensor, stretch, from, packed, result);
  else if (packed != nullptr && tensor.as_they_lie())
    fold_dense(tensor, stretch, from, packed, result);
  else
    fold_elements(tensor, stretch, from, result);
  result.num_elems = kept_elems(stretch, tensor.width, result.bits);
  return result;
}

/// Elements whose contributions are all dense and lie where they can be read.
void MaskedReduction::fold_dense(const Tensor& tensor, const Stretch& stretch,
                                 const Contributions& from, std::byte* packed,
                                 Result& result) const {
  std::vector<const std::byte*> srcs, bits;
  for (Rank rank = 0; rank < world_; ++rank) {
    srcs.push_back(rank == rank_ ? tensor.values.at(stretch.begin) : from[rank].values);
    bits.push_back(from[rank].bits);
  }
  sum_dense(tensor.values.dtype(), srcs, bits, stretch.num_elems(), divisor(0), tensor.fill_bytes(),
            tensor.out.at(stretch.begin), packed,
            options_.counts ? tensor.counts + stretch.begin : nullptr, result.bits);
  result.is_packed = true;
}

/// Blocks outside, ranks inside: accumulator and counts of a block stay in the nearest cache.
void MaskedReduction::fold_elements(const Tensor& tensor, const Stretch& stretch,
                                    Contributions& from, Result& result) const {
  const Dtype dtype = tensor.values.dtype();
  const auto size = static_cast<int64_t>(tensor.values.elem_bytes());
  alignas(64) std::byte sum[kBlockElems * 8], own[kBlockElems * 8], made[kBlockElems * 8];
  alignas(64) int32_t counts[kBlockElems];
  for (int64_t lo = stretch.begin; lo < stretch.end; lo += kBlockElems) {
    const int64_t hi = std::min(stretch.end, lo + kBlockElems), some = hi - lo;
    const std::byte* mine = own_values(tensor, lo, hi, own);
    start_sum(dtype, sum, counts, some);
    for (Rank rank = 0; rank < world_; ++rank) {
      Contribution& each = from[rank];
      const std::byte* bits = each.bits + (lo - stretch.begin) / 8;
      const std::byte* values = each.values;
      if (rank == rank_) values = mine;
      const int64_t taken = add_masked(dtype, each.compact, values, bits, some, sum, counts);
      if (rank != rank_) each.values += (each.compact ? taken : some) * size;
    }
    std::byte* const dst = tensor.out.contiguous() ? tensor.out.at(lo) : made;
    finish_sum(dtype, sum, counts, divisor(0), tensor.fill_bytes(), dst, some);
    if (!tensor.out.contiguous()) tensor.out.write(lo, hi, made);
    test_counts(counts, some, -1, result.bits + (lo - stretch.begin) / 8);
    if (options_.counts) std::copy_n(counts, some, tensor.counts + lo);
  }
}

/// `copy` may be null.
void MaskedReduction::fold_run(Dtype dtype, std::span<const std::byte* const> srcs, std::byte* dst,
                               std::byte* copy, int64_t count) const {
  const int by = divisor(static_cast<int>(srcs.size()));
  if (copy != nullptr) return fold_twice(ReduceOp::kSum, dtype, srcs, by, dst, copy, count);
  // A single number that is its own sum needs no accumulator.
  if (srcs.size() == 1 && srcs[0] != dst && accumulator_dtype(dtype) == dtype)
    finish(dtype, srcs[0], by, dst, count);
  else
    hybridengine::fold(ReduceOp::kSum, dtype, srcs, by, dst, count);
}

/// Entries that have the same contributors are folded as one run.
void MaskedReduction::fold_entries(const Tensor& tensor, const Stretch& stretch,
                                   Contributions& from, std::byte* packed, Result& result) const {
  const int64_t width = tensor.width, first = stretch.first_entry(width);
  const auto size = static_cast<int64_t>(tensor.values.elem_bytes());
  const auto alike = [&](int64_t a, int64_t b) {
    return std::ranges::all_of(from, [&](const Contribution& each) {
      return bit_at(each.bits, a - first) == bit_at(each.bits, b - first);
    });
  };
  std::byte own[kBlockElems * 8], made[kBlockElems * 8];
  std::vector<const std::byte*> srcs;
  const int64_t step = step_elems(tensor, stretch);
  for (int64_t lo = stretch.begin; lo < stretch.end; lo += step) {
    const int64_t hi = std::min(stretch.end, lo + step);
    const std::byte* mine = own_values(tensor, lo, hi, own);
    std::byte* const dst = tensor.out.contiguous() ? tensor.out.at(lo) : made;
    for (int64_t at = lo, end = lo; at < hi; at = end) {
      const int64_t entry = at / width;
      int64_t last = entry;
      while ((last + 1) * width < hi && alike(entry, last + 1)) ++last;
      end = std::min(hi, (last + 1) * width);
      srcs.clear();
      for (Rank rank = 0; rank < world_; ++rank) {
        Contribution& each = from[rank];
        const bool takes_part = bit_at(each.bits, entry - first);
        if (takes_part) srcs.push_back(rank == rank_ ? mine + (at - lo) * size : each.values);
        if (rank != rank_ && (takes_part || !each.compact)) each.values += (end - at) * size;
      }
      const auto contributors = static_cast<int>(srcs.size());
      std::fill(tensor.counts + entry, tensor.counts + last + 1, contributors);
      std::byte* const to = dst + (at - lo) * size;
      std::byte* const copy = packed == nullptr ? nullptr : packed + (at - stretch.begin) * size;
      if (contributors > 0) {
        fold_run(tensor.values.dtype(), srcs, to, copy, end - at);
        continue;
      }
      if (!options_.out_is_filled || !tensor.out.contiguous())
        stream_fill(tensor.values.elem_bytes(), tensor.fill_bytes(), to, end - at);
      if (copy != nullptr)
        stream_fill(tensor.values.elem_bytes(), tensor.fill_bytes(), copy, end - at);
    }
    if (!tensor.out.contiguous()) tensor.out.write(lo, hi, made);
  }
  result.is_packed = packed != nullptr;
  const int64_t entries = stretch.num_entries(width);
  test_counts(tensor.counts + first, entries, -1, result.bits);
}

}  // namespace hybridengine
