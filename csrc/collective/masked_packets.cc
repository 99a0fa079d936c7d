// The part of a masked reduction that fills packets and reads them.
#include <cstring>

#include "base/error.h"
#include "collective/entries.h"
#include "collective/masked.h"
#include "device/mask.h"
#include "device/reduce.h"

namespace hybridengine {
namespace {

constexpr uint64_t kCompact = 0, kDense = 1;  // the first word of a packed stretch

/// A stretch may travel dense where that costs at most half a mask more.
constexpr int64_t kHalfMask = 16;  // half bits of a byte

/// The elements of entries that a mask keeps, appended to `dst`; from `lo`, where `src` begins.
std::byte* append_kept(const Stretch& stretch, int64_t width, size_t elem_bytes,
                       const std::byte* bits, int64_t lo, int64_t hi, const std::byte* src,
                       std::byte* dst) {
  const auto size = static_cast<int64_t>(elem_bytes);
  if (width == 1)
    return dst + size * compact(elem_bytes, src, bits + (lo - stretch.begin) / 8, hi - lo, dst);
  each_run(stretch, width, bits, lo, hi, [&](bool kept, int64_t begin, int64_t end) {
    if (!kept) return;
    const int64_t bytes = (end - begin) * size;
    stream_run(src + (begin - lo) * size, dst, bytes);
    dst += bytes;
  });
  return dst;
}

/// The inverse: returns where `src` goes on. Without a `fill` what is masked stays as it is; single
/// elements have one.
const std::byte* spread_kept(const Stretch& stretch, int64_t width, size_t elem_bytes,
                             const std::byte* bits, int64_t lo, int64_t hi, const std::byte* src,
                             const std::byte* fill, std::byte* dst) {
  const auto size = static_cast<int64_t>(elem_bytes);
  if (width == 1) {
    const std::byte* part = bits + (lo - stretch.begin) / 8;
    expand(elem_bytes, src, part, fill, hi - lo, dst);
    return src + size * count_bits(part, hi - lo);
  }
  each_run(stretch, width, bits, lo, hi, [&](bool kept, int64_t begin, int64_t end) {
    const int64_t bytes = (end - begin) * size;
    if (!kept) {
      if (fill != nullptr) stream_fill(elem_bytes, fill, dst + (begin - lo) * size, end - begin);
      return;
    }
    stream_run(src, dst + (begin - lo) * size, bytes);
    src += bytes;
  });
  return src;
}

std::byte* put_flag(std::byte* dst, uint64_t flag) {
  std::memcpy(dst, &flag, sizeof flag);
  return dst + sizeof flag;
}

uint64_t flag_of(const std::byte* src) {
  uint64_t flag = 0;
  std::memcpy(&flag, src, sizeof flag);
  return flag;
}

}  // namespace

/// This rank's values, with the residual: where they lie, or in `scratch` (kBlockElems). To be
/// called once for each element, for it settles the residual.
const std::byte* MaskedReduction::own_values(const Tensor& tensor, int64_t begin, int64_t end,
                                             std::byte* scratch) const {
  if (tensor.as_they_lie()) return tensor.values.at(begin);
  tensor.values.read(begin, end, scratch);
  if (tensor.residual) settle_residual(tensor, begin, end, scratch);
  return scratch;
}

/// Adds the residual to `values`, and leaves in it what does not take part this time.
void MaskedReduction::settle_residual(const Tensor& tensor, int64_t begin, int64_t end,
                                      std::byte* values) const {
  const size_t size = tensor.values.elem_bytes();
  const Dtype dtype = tensor.values.dtype();
  alignas(64) std::byte residual[kBlockElems * 8];
  tensor.residual->read(begin, end, residual);
  reduce(ReduceOp::kSum, dtype, residual, values, end - begin);
  remember(dtype, values, residual, end - begin);
  if (tensor.width == 1) {
    clear_kept(size, tensor.bits() + begin / 8, end - begin, residual);
  } else {
    const Stretch whole{0, 0, tensor.values.num_elems()};
    each_run(whole, tensor.width, tensor.bits(), begin, end,
             [&](bool kept, int64_t from, int64_t to) {
               const size_t skipped = static_cast<size_t>(from - begin) * size;
               if (kept) std::memset(residual + skipped, 0, static_cast<size_t>(to - from) * size);
             });
  }
  tensor.residual->write(begin, end, residual);
}

/// How many elements are handled at once: all where memory can be used as it lies.
int64_t MaskedReduction::step_elems(const Tensor& tensor, const Stretch& stretch) const {
  return tensor.as_they_lie() && tensor.out.contiguous() ? stretch.num_elems() : kBlockElems;
}

size_t MaskedReduction::pack_contribution(const Stretch& stretch, std::byte* dst) {
  const Tensor& tensor = tensors_[stretch.tensor];
  const int64_t entries = stretch.num_entries(tensor.width);
  const auto size = static_cast<int64_t>(tensor.values.elem_bytes());
  std::byte* const bits = cleared(pack_bits_, entries);
  copy_bits(tensor.bits(), stretch.first_entry(tensor.width), entries, bits);
  const int64_t kept = kept_elems(stretch, tensor.width, bits);
  const bool dense =
      route_ == Route::kDense || (stretch.num_elems() - kept) * size * kHalfMask <= entries;
  const int64_t whole_bytes = packed_bytes(mask_bytes(entries), stretch.num_elems(), size);
  dense_bytes_ += whole_bytes;
  if (dst != nullptr) {
    std::byte* at = put_flag(dst, dense ? kDense : kCompact);
    std::memcpy(at, bits, static_cast<size_t>(mask_bytes(entries)));
    at += mask_bytes(entries);
    std::byte scratch[kBlockElems * 8];
    const int64_t step = tensor.as_they_lie() ? stretch.num_elems() : kBlockElems;
    for (int64_t lo = stretch.begin; lo < stretch.end; lo += step) {
      const int64_t hi = std::min(stretch.end, lo + step);
      const std::byte* values = own_values(tensor, lo, hi, scratch);
      if (dense)
        stream_run(values, at + (lo - stretch.begin) * size, (hi - lo) * size);
      else
        at = append_kept(stretch, tensor.width, tensor.values.elem_bytes(), bits, lo, hi, values,
                         at);
    }
  }
  return static_cast<size_t>(dense ? whole_bytes : packed_bytes(mask_bytes(entries), kept, size));
}

size_t MaskedReduction::read_contribution(const Stretch& stretch, const std::byte* src,
                                          Contribution& dst) const {
  const Tensor& tensor = tensors_[stretch.tensor];
  const int64_t bytes = mask_bytes(stretch.num_entries(tensor.width));
  dst.bits = src + sizeof(uint64_t);
  dst.values = dst.bits + bytes;
  dst.compact = flag_of(src) == kCompact;
  const int64_t values =
      dst.compact ? kept_elems(stretch, tensor.width, dst.bits) : stretch.num_elems();
  return static_cast<size_t>(
      packed_bytes(bytes, values, static_cast<int64_t>(tensor.values.elem_bytes())));
}

/// Whether a plain all-reduce with a mask would have moved fewer bytes of this stretch.
bool MaskedReduction::dense_result(const Stretch& stretch, const Result& result) const {
  if (route_ == Route::kDense) return true;
  if (options_.counts) return result.num_elems == stretch.num_elems();
  const auto size = static_cast<int64_t>(tensors_[stretch.tensor].values.elem_bytes());
  const int64_t masked =
      meta_bytes(stretch) + (result.contributed_elems / world_ + result.num_elems) * size;
  return masked > 2 * stretch.num_elems() * size;
}

/// What tells of a result which entries it is for: a mask, or counts, a plane for each of their
/// bits.
int64_t MaskedReduction::meta_bytes(const Stretch& stretch) const {
  const int64_t entries = stretch.num_entries(tensors_[stretch.tensor].width);
  return mask_bytes(entries) * (options_.counts ? planes_ : 1);
}

/// Where the values of a result will be in its packet at `dst`, if that is known before they are
/// made; else null.
std::byte* MaskedReduction::packed_values(const Stretch& stretch, std::byte* dst) const {
  if (route_ != Route::kDense || dst == nullptr) return nullptr;
  if (!tensors_[stretch.tensor].out.contiguous()) return nullptr;
  return dst + sizeof(uint64_t) + (options_.counts ? meta_bytes(stretch) : 0);
}

size_t MaskedReduction::pack_result(const Stretch& stretch, const Result& result, std::byte* dst) {
  const Tensor& tensor = tensors_[stretch.tensor];
  const int64_t entries = stretch.num_entries(tensor.width);
  const size_t elem_bytes = tensor.values.elem_bytes();
  const auto size = static_cast<int64_t>(elem_bytes);
  const bool dense = dense_result(stretch, result);
  const int64_t meta = dense && !options_.counts ? 0 : meta_bytes(stretch);
  dense_bytes_ +=
      (world_ - 1) * packed_bytes(options_.counts ? meta : 0, stretch.num_elems(), size);
  if (dst != nullptr) {
    std::byte* at = put_flag(dst, dense ? kDense : kCompact);
    const int32_t* counts = tensor.counts + stretch.first_entry(tensor.width);
    if (options_.counts)
      for (int plane = 0; plane < planes_; ++plane)
        test_counts(counts, entries, 1 << plane, at + plane * mask_bytes(entries));
    else if (!dense)
      std::memcpy(at, result.bits, static_cast<size_t>(meta));
    at += meta;
    std::byte scratch[kBlockElems * 8];
    const int64_t step = tensor.out.contiguous() ? stretch.num_elems() : kBlockElems;
    for (int64_t lo = stretch.begin; lo < stretch.end && !result.is_packed; lo += step) {
      const int64_t hi = std::min(stretch.end, lo + step);
      if (!tensor.out.contiguous()) tensor.out.read(lo, hi, scratch);
      const std::byte* values = tensor.out.contiguous() ? tensor.out.at(lo) : scratch;
      if (dense)
        stream_run(values, at + (lo - stretch.begin) * size, (hi - lo) * size);
      else
        at = append_kept(stretch, tensor.width, elem_bytes, result.bits, lo, hi, values, at);
    }
  }
  return static_cast<size_t>(
      packed_bytes(meta, dense ? stretch.num_elems() : result.num_elems, size));
}

size_t MaskedReduction::unpack_result(const Stretch& stretch, const std::byte* src) {
  const Tensor& tensor = tensors_[stretch.tensor];
  const int64_t entries = stretch.num_entries(tensor.width);
  const size_t elem_bytes = tensor.values.elem_bytes();
  const auto size = static_cast<int64_t>(elem_bytes);
  const bool dense = flag_of(src) == kDense;
  const int64_t meta = dense && !options_.counts ? 0 : meta_bytes(stretch);
  const std::byte* bits = src + sizeof(uint64_t);
  const std::byte* values = bits + meta;
  const std::byte* const values_begin = values;
  if (options_.counts) {
    int32_t* counts = tensor.counts + stretch.first_entry(tensor.width);
    std::fill_n(counts, entries, 0);
    for (int plane = 0; plane < planes_; ++plane)
      add_plane(bits + plane * mask_bytes(entries), entries, 1 << plane, counts);
    std::byte* const taken = cleared(taken_bits_, entries);
    test_counts(counts, entries, -1, taken);
    bits = taken;
  }
  std::byte scratch[kBlockElems * 8];
  const int64_t step = tensor.out.contiguous() ? stretch.num_elems() : kBlockElems;
  const bool filled = options_.out_is_filled && tensor.width > 1 && tensor.out.contiguous();
  const std::byte* const fill = filled ? nullptr : tensor.fill_bytes();
  for (int64_t lo = stretch.begin; lo < stretch.end; lo += step) {
    const int64_t hi = std::min(stretch.end, lo + step);
    std::byte* const dst = tensor.out.contiguous() ? tensor.out.at(lo) : scratch;
    if (dense) {
      stream_run(values, dst, (hi - lo) * size);
      values += (hi - lo) * size;
    } else {
      values = spread_kept(stretch, tensor.width, elem_bytes, bits, lo, hi, values, fill, dst);
    }
    if (!tensor.out.contiguous()) tensor.out.write(lo, hi, scratch);
  }
  return static_cast<size_t>(packed_bytes(meta, (values - values_begin) / size, size));
}

}  // namespace hybridengine
