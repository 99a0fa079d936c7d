// The part of a masked reduction that judges what the caller gave.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "collective/masked.h"
#include "device/copy.h"
#include "device/mask.h"
#include "device/reduce.h"

namespace hybridengine {
namespace {

uint64_t integer_fill(Dtype dtype, double fill) {
  const int bits = static_cast<int>(dtype_bytes(dtype)) * 8;
  const double largest = std::ldexp(1.0, dtype == Dtype::kUint8 ? 8 : bits - 1);
  const double smallest = dtype == Dtype::kUint8 ? 0.0 : -largest;
  if (!(fill >= smallest && fill < largest) || fill != std::floor(fill))
    throw UsageError(str_cat("fill does not fit ", dtype_name(dtype)), str_cat("fill is ", fill),
                     "Give an integer in its range.");
  return static_cast<uint64_t>(static_cast<int64_t>(fill));
}

/// `fill` as an element of `dtype`.
uint64_t fill_of(Dtype dtype, double fill) {
  if (!is_floating(dtype)) return integer_fill(dtype, fill);
  uint64_t element = 0;
  const StridedEnd src{reinterpret_cast<std::byte*>(&fill), {}, Dtype::kFloat64};
  const StridedEnd dst{reinterpret_cast<std::byte*>(&element), {}, dtype};
  copy_strided(src, dst, 0, {});
  return element;
}

void check_type(Dtype dtype, MaskedOp op) {
  accumulator_dtype(dtype);  // throws where it cannot be reduced
  if (op != MaskedOp::kSum && !is_floating(dtype))
    throw UsageError(str_cat("cannot take the mean of ", dtype_name(dtype)), "",
                     "Use op='sum' and divide by the counts, or convert to a floating type.");
}

void check_scores(Dtype dtype) {
  if (dtype == Dtype::kBool || (is_floating(dtype) && dtype_bytes(dtype) > 1)) return;
  throw UsageError(str_cat("scores are ", dtype_name(dtype)), "",
                   "Give float64, float32, float16, bfloat16 or bool.");
}

struct Extent {
  const std::byte* begin;
  const std::byte* end;
  bool written;
  const char* what;
  size_t tensor;
};

Extent extent_of(const TensorMemory& memory, bool written, const char* what, size_t tensor) {
  int64_t elems = 1;
  for (int dim = 0; dim < memory.shape.ndim; ++dim)
    elems += (memory.shape.size[dim] - 1) * memory.strides[dim];
  if (memory.shape.num_elems() == 0) elems = 0;
  const auto bytes = elems * static_cast<int64_t>(dtype_bytes(memory.dtype));
  return {memory.data, memory.data + bytes, written, what, tensor};
}

/// Throws UsageError where memory that is written overlaps with other memory.
void check_apart(const std::vector<MaskedTensor>& tensors) {
  std::vector<Extent> extents;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const MaskedTensor& each = tensors[i];
    const bool in_place =
        each.out.data == each.values.data && each.out.strides == each.values.strides;
    if (!in_place) extents.push_back(extent_of(each.values, false, "values", i));
    extents.push_back(extent_of(each.scores, false, "scores", i));
    extents.push_back(extent_of(each.out, true, in_place ? "values" : "out", i));
    if (each.residual) extents.push_back(extent_of(*each.residual, true, "residual", i));
  }
  std::erase_if(extents, [](const Extent& extent) { return extent.begin == extent.end; });
  std::ranges::sort(extents, {}, &Extent::begin);
  const Extent* reaches = nullptr;  // of those before, the one that ends last
  const Extent* writes = nullptr;   // the same of those that are written
  for (const Extent& extent : extents) {
    const Extent* other = extent.written ? reaches : writes;
    if (other != nullptr && other->end > extent.begin)
      throw UsageError("tensors share memory that is written",
                       str_cat(other->what, " of tensor ", other->tensor, " and ", extent.what,
                               " of tensor ", extent.tensor),
                       "Give each its own memory; only out may be values itself.");
    if (reaches == nullptr || extent.end > reaches->end) reaches = &extent;
    if (extent.written && (writes == nullptr || extent.end > writes->end)) writes = &extent;
  }
}

}  // namespace

MaskedReduction::MaskedReduction(const std::vector<MaskedTensor>& tensors, MaskedOptions options)
    : options_(options) {
  check_apart(tensors);
  tensors_.reserve(tensors.size());
  int64_t words = 0;
  for (const MaskedTensor& each : tensors) {
    check_type(each.values.dtype, options.op);
    check_scores(each.scores.dtype);
    Tensor& tensor = tensors_.emplace_back();
    tensor.values = FlatMemory(each.values);
    tensor.scores = FlatMemory(each.scores);
    tensor.out = FlatMemory(each.out);
    if (each.residual) tensor.residual = FlatMemory(*each.residual);
    tensor.counts = each.counts;
    tensor.width = each.width;
    tensor.fill = fill_of(each.values.dtype, options.fill);
    ensure(each.width == 1 || options.counts, "wide entries have counts");
    words += mask_words(tensor.scores.num_elems());
  }
  masks_.resize(static_cast<size_t>(words));
  uint64_t* mask = masks_.data();
  for (Tensor& each : tensors_) {
    each.mask = mask;
    mask += mask_words(each.scores.num_elems());
  }
}

}  // namespace hybridengine
