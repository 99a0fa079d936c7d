#include "layout/box.h"

#include <algorithm>

#include "base/error.h"

namespace hybridengine {

Shape::Shape(std::span<const int64_t> sizes) : ndim(static_cast<int>(sizes.size())) {
  if (sizes.size() > kMaxDims)
    throw UsageError("a tensor has too many dims", str_cat(sizes.size(), " dims, limit ", kMaxDims),
                     "Flatten it first.");
  for (int dim = 0; dim < ndim; ++dim) {
    if (sizes[dim] < 0)
      throw UsageError("a tensor has a negative size", str_cat("dim ", dim, " is ", sizes[dim]),
                       "");
    size[dim] = sizes[dim];
  }
}

int64_t Shape::num_elems() const {
  int64_t count = 1;
  bool empty = false;
  for (int dim = 0; dim < ndim; ++dim) {
    empty = empty || size[dim] == 0;
    // Empty tensors have strides too, so their other dims must fit as well.
    if (__builtin_mul_overflow(count, std::max<int64_t>(size[dim], 1), &count))
      throw UsageError("a tensor has more elements than 63 bits count", to_string(), "");
  }
  return empty ? 0 : count;
}

Dims Shape::contiguous_strides() const {
  Dims strides{};
  int64_t stride = 1;
  for (int dim = ndim - 1; dim >= 0; --dim) {
    strides[dim] = stride;
    stride *= std::max<int64_t>(size[dim], 1);
  }
  return strides;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int dim = 0; dim < ndim; ++dim) text += (dim ? ", " : "") + std::to_string(size[dim]);
  return text + "]";
}

int64_t Box::num_elems() const {
  int64_t count = 1;
  for (int dim = 0; dim < ndim; ++dim) count *= size[dim];
  return count;
}

bool Box::contains(const Box& inner) const {
  if (inner.ndim != ndim) return false;
  // Subtracted, not added: the end of a box from a caller or a file may not fit 64 bits.
  for (int dim = 0; dim < ndim; ++dim)
    if (inner.start[dim] < start[dim] || inner.size[dim] < 0 || inner.size[dim] > size[dim] ||
        inner.start[dim] - start[dim] > size[dim] - inner.size[dim])
      return false;
  return true;
}

std::string Box::to_string() const {
  std::string text = "[";
  for (int dim = 0; dim < ndim; ++dim) text += str_cat(dim ? ", " : "", start[dim], ":", end(dim));
  return text + "]";
}

Box intersect(const Box& a, const Box& b) {
  Box common;
  common.ndim = a.ndim;
  for (int dim = 0; dim < a.ndim; ++dim) {
    common.start[dim] = std::max(a.start[dim], b.start[dim]);
    common.size[dim] = std::max<int64_t>(0, std::min(a.end(dim), b.end(dim)) - common.start[dim]);
  }
  return common;
}

void subtract(const Box& whole, const Box& hole, std::vector<Box>& rest) {
  Box left = whole;  // shrinks to the hole, one dim at a time
  for (int dim = 0; dim < whole.ndim; ++dim) {
    if (left.start[dim] < hole.start[dim]) {
      Box before = left;
      before.size[dim] = hole.start[dim] - left.start[dim];
      rest.push_back(before);
    }
    if (hole.end(dim) < left.end(dim)) {
      Box after = left;
      after.start[dim] = hole.end(dim);
      after.size[dim] = left.end(dim) - hole.end(dim);
      rest.push_back(after);
    }
    left.start[dim] = hole.start[dim];
    left.size[dim] = hole.size[dim];
  }
}

void subtract_from(std::vector<Box>& boxes, const Box& hole) {
  std::vector<Box> rest;
  for (const Box& box : boxes) {
    const Box common = intersect(box, hole);
    if (common.empty())
      rest.push_back(box);
    else
      subtract(box, common, rest);
  }
  boxes.swap(rest);
}

void split_row_major(const Box& box, int64_t elems, std::vector<Box>& head,
                     std::vector<Box>& tail) {
  // Rows of the current dim that fit whole go to the head; the row that is cut becomes the box of
  // the next dim. What lies behind each cut row goes to the tail, innermost first.
  Box row = box;
  std::vector<Box> behind;
  for (int dim = 0; dim < box.ndim && elems > 0; ++dim) {
    const int64_t row_elems = row.num_elems() / row.size[dim];
    const int64_t whole_rows = elems / row_elems;
    elems -= whole_rows * row_elems;
    const int64_t cut_rows = elems > 0 ? 1 : 0;
    Box front = row, back = row;
    front.size[dim] = whole_rows;
    back.start[dim] += whole_rows + cut_rows;
    back.size[dim] -= whole_rows + cut_rows;
    if (whole_rows > 0) head.push_back(front);
    if (back.size[dim] > 0) behind.push_back(back);
    row.start[dim] += whole_rows;
    row.size[dim] = cut_rows;
  }
  tail.insert(tail.end(), behind.rbegin(), behind.rend());
}

std::optional<std::pair<size_t, size_t>> find_overlap(const Box& whole,
                                                      std::span<const Box> parts) {
  struct Range {  // of row-major positions in `whole`
    int64_t first, last;
    size_t part;
  };
  const Dims strides = Shape(std::span(whole.size.data(), whole.ndim)).contiguous_strides();
  std::vector<Range> ranges(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    Range& range = ranges[i] = {0, 0, i};
    for (int dim = 0; dim < whole.ndim; ++dim) {
      range.first += (parts[i].start[dim] - whole.start[dim]) * strides[dim];
      range.last += (parts[i].end(dim) - 1 - whole.start[dim]) * strides[dim];
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  std::vector<Range> open;  // those that reach to the next one
  for (const Range& range : ranges) {
    std::erase_if(open, [&](const Range& other) { return other.last < range.first; });
    for (const Range& other : open)
      if (!intersect(parts[other.part], parts[range.part]).empty())
        return std::pair(other.part, range.part);
    open.push_back(range);
  }
  return std::nullopt;
}

LocalPlace place_within(const LocalPlace& place, const Box& outer, const Box& inner) {
  LocalPlace inside = place;
  for (int dim = 0; dim < outer.ndim; ++dim)
    inside.offset_elems += (inner.start[dim] - outer.start[dim]) * place.strides[dim];
  return inside;
}

}  // namespace hybridengine
