#include "collective/flat.h"

#include <cstring>

#include "device/mask.h"

namespace hybridengine {
namespace {

/// Boxes that cover elements [begin, end) of a tensor, in row-major order.
std::vector<Box> boxes_of(const Shape& shape, int64_t begin, int64_t end) {
  std::vector<Box> boxes, rest{Box(shape)}, ignored;
  if (begin > 0) {
    const Box whole = rest.front();
    rest.clear();
    split_row_major(whole, begin, ignored, rest);
  }
  int64_t left = end - begin;
  for (const Box& box : rest) {
    if (left == 0) break;
    const int64_t elems = box.num_elems();
    if (elems <= left)
      boxes.push_back(box);
    else
      split_row_major(box, left, boxes, ignored);
    left -= std::min(elems, left);
  }
  return boxes;
}

}  // namespace

FlatMemory::FlatMemory(const TensorMemory& memory)
    : memory_(memory), num_elems_(memory.shape.num_elems()), contiguous_(is_contiguous(memory)) {}

/// `copy(end in this tensor, elements before it, ndim, size)` for every box.
template <class Copy>
void FlatMemory::each_box(int64_t begin, int64_t end, const Copy& copy) const {
  int64_t before = 0;
  for (const Box& box : boxes_of(memory_.shape, begin, end)) {
    int64_t offset = 0;
    Shape part;
    part.ndim = box.ndim;
    part.size = box.size;
    for (int dim = 0; dim < box.ndim; ++dim) offset += box.start[dim] * memory_.strides[dim];
    copy(StridedEnd{at(offset), memory_.strides, memory_.dtype}, before, part);
    before += box.num_elems();
  }
}

void FlatMemory::read(int64_t begin, int64_t end, std::byte* dst) const {
  const auto size = static_cast<int64_t>(elem_bytes());
  if (begin == end) return;
  if (contiguous_) {
    std::memcpy(dst, at(begin), static_cast<size_t>((end - begin) * size));
    return;
  }
  each_box(begin, end, [&](const StridedEnd& here, int64_t before, const Shape& part) {
    const StridedEnd there{dst + before * size, part.contiguous_strides(), memory_.dtype};
    copy_strided(here, there, part.ndim, part.size);
  });
}

void FlatMemory::write(int64_t begin, int64_t end, const std::byte* src) const {
  const auto size = static_cast<int64_t>(elem_bytes());
  if (begin == end) return;
  if (contiguous_) {
    std::memcpy(at(begin), src, static_cast<size_t>((end - begin) * size));
    return;
  }
  each_box(begin, end, [&](const StridedEnd& here, int64_t before, const Shape& part) {
    const StridedEnd there{const_cast<std::byte*>(src) + before * size, part.contiguous_strides(),
                           memory_.dtype};
    copy_strided(there, here, part.ndim, part.size);
  });
}

void FlatMemory::stream_from(int64_t begin, int64_t end, std::byte* dst) const {
  if (!contiguous_) return read(begin, end, dst);
  stream_run(at(begin), dst, (end - begin) * static_cast<int64_t>(elem_bytes()));
}

void FlatMemory::stream_to(int64_t begin, int64_t end, const std::byte* src) const {
  if (!contiguous_) return write(begin, end, src);
  stream_run(src, at(begin), (end - begin) * static_cast<int64_t>(elem_bytes()));
}

}  // namespace hybridengine
