// Boxes: half-open n-d index ranges, and how a box lies in memory.
//
// Vocabulary: a *box* has a start and a size per dim. A 0-dim box holds one element. *Strides* are
// in elements, one per dim of the logical tensor. A *place* is where a box lies in a local tensor:
// an offset and strides, in elements of that tensor as if it were contiguous.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dims.h"

namespace hybridengine {

struct Shape {
  int ndim = 0;
  Dims size{};

  Shape() = default;
  /// Throws UsageError on more than kMaxDims dims or a negative size.
  explicit Shape(std::span<const int64_t> sizes);

  /// Number of elements. Throws UsageError where it, without dims of size 0, does not fit in 63
  /// bits.
  int64_t num_elems() const;
  /// Row-major strides in elements; dims of size 0 count as 1.
  Dims contiguous_strides() const;
  std::string to_string() const;  // "[576, 192]"
  bool operator==(const Shape& other) const = default;
};

struct Box {
  int ndim = 0;
  Dims start{};
  Dims size{};

  Box() = default;
  explicit Box(const Shape& whole) : ndim(whole.ndim), size(whole.size) {}

  int64_t num_elems() const;  // 1 for 0 dims, 0 for an empty box
  bool empty() const { return num_elems() == 0; }
  int64_t end(int dim) const { return start[dim] + size[dim]; }
  bool contains(const Box& inner) const;
  std::string to_string() const;  // "[0:192, 64:128]"
  bool operator==(const Box& other) const = default;
};

/// The common part; an empty box (size 0 in some dim) where there is none.
Box intersect(const Box& a, const Box& b);

/// Appends to `rest` disjoint boxes that cover `whole` less `hole`, in row-major order of their
/// starts per dim: at most 2 * ndim of them. `hole` must lie within `whole` and be non-empty.
void subtract(const Box& whole, const Box& hole, std::vector<Box>& rest);

/// Takes `hole` out of disjoint boxes.
void subtract_from(std::vector<Box>& boxes, const Box& hole);

/// Cuts `box` in row-major order so that the first part has exactly `elems` elements: the first
/// part is appended to `head`, what is left to `tail`, each as at most 2 * ndim - 1 boxes in
/// row-major order. Needs 0 < elems < box.num_elems().
void split_row_major(const Box& box, int64_t elems, std::vector<Box>& head, std::vector<Box>& tail);

/// Indices of two of `parts` that have an element in common, where there are any. All of them lie
/// within `whole` and are not empty. Quick where few parts interleave in row-major order.
std::optional<std::pair<size_t, size_t>> find_overlap(const Box& whole, std::span<const Box> parts);

/// Where a box lies in a local tensor.
struct LocalPlace {
  int64_t offset_elems = 0;
  Dims strides{};
  bool operator==(const LocalPlace& other) const = default;
};

/// The place of `inner` when `outer` lies at `place`. `outer` contains `inner`.
LocalPlace place_within(const LocalPlace& place, const Box& outer, const Box& inner);

}  // namespace hybridengine
