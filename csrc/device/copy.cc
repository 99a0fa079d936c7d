#include "device/copy.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "base/error.h"
#include "base/hash.h"
#include "device/isa.h"
#include "device/loops.h"

// A copy is first made *simple*: dims of size 1 are dropped, dims are sorted by their stride at the
// destination, and neighbours that are one dim at both ends are merged. The innermost dim makes the
// *runs*; the others are then sorted so that the source is read from front to back, since a read
// that jumps must be waited for and a write need not. The two innermost dims are a *block* for one
// of the loops; an odometer steps over the other dims. Where the source's innermost dim is another
// than the destination's (a transposition), the block is made of those two and cut into *tiles*
// that stay in the cache at both ends.

namespace hybridengine {
namespace {

// Elements along each side of a tile: a cache line of both ends is used whole, and at a pitch of a
// power of two (all lines in one cache set) few lines are evicted before they have been used.
constexpr int64_t kTileElems = 16;

// Copies of this many bytes and more are written past the cache, smaller ones stay in it for the
// reader that follows. Measured: streaming a cold destination is 1.5 times as fast at every size;
// where the same core reads the copy next, streaming wins from 128 KiB on.
constexpr int64_t kStreamBytes = 256 << 10;

// Shorter runs are only streamed where each is made of whole cache lines: the lines at the ends of
// the others are not, and cost as much as is saved.
constexpr int64_t kStreamRunBytes = 256;
constexpr int64_t kLineBytes = 64;

// What digest_strided gathers before it digests it; lies on the stack.
constexpr int64_t kGatherBytes = 4096;

/// One dim of a copy; strides in bytes.
struct Dim {
  int64_t size;
  int64_t src;
  int64_t dst;
};

struct DimList {
  int count = 0;
  Dim dims[kMaxDims];

  Dim* begin() { return dims; }
  Dim* end() { return dims + count; }
  void push(const Dim& dim) { dims[count++] = dim; }
  Dim pop(int at) {
    const Dim dim = dims[at];
    std::copy(dims + at + 1, dims + count, dims + at);
    --count;
    return dim;
  }
};

/// Merges neighbours where, at both ends, the outer one steps over the whole inner one.
void merge(DimList& list) {
  int last = 0;
  for (int at = 1; at < list.count; ++at) {
    Dim& outer = list.dims[last];
    const Dim& inner = list.dims[at];
    if (outer.src == inner.src * inner.size && outer.dst == inner.dst * inner.size)
      outer = {outer.size * inner.size, inner.src, inner.dst};
    else
      list.dims[++last] = inner;
  }
  list.count = std::min(list.count, last + 1);
}

void sort_for_destination(DimList& list) {
  std::stable_sort(list.begin(), list.end(), [](const Dim& a, const Dim& b) {
    return a.dst != b.dst ? a.dst > b.dst : std::abs(a.src) > std::abs(b.src);
  });
}

void sort_for_source(DimList& list) {
  std::stable_sort(list.begin(), list.end(),
                   [](const Dim& a, const Dim& b) { return std::abs(a.src) > std::abs(b.src); });
}

/// The dims of the copy; `empty` where one of them has size 0.
DimList dims_of(const StridedEnd& src, const StridedEnd& dst, int ndim, const Dims& size,
                bool& empty) {
  const auto src_bytes = static_cast<int64_t>(dtype_bytes(src.dtype));
  const auto dst_bytes = static_cast<int64_t>(dtype_bytes(dst.dtype));
  DimList list;
  empty = false;
  for (int dim = 0; dim < ndim; ++dim) {
    if (size[dim] == 0) empty = true;
    if (size[dim] == 1) continue;
    list.push({size[dim], src.strides[dim] * src_bytes, dst.strides[dim] * dst_bytes});
  }
  return list;
}

/// Calls `act(src, dst)` for every index of the dims in `list`, row-major.
template <class Act>
void for_each_index(const DimList& list, const std::byte* src, std::byte* dst, const Act& act) {
  Dims index{};
  for (;;) {
    act(src, dst);
    int dim = list.count - 1;
    for (; dim >= 0; --dim) {
      const Dim& step = list.dims[dim];
      src += step.src;
      dst += step.dst;
      if (++index[dim] < step.size) break;
      src -= step.src * step.size;
      dst -= step.dst * step.size;
      index[dim] = 0;
    }
    if (dim < 0) return;
  }
}

void run_tiled(BlockLoop loop, const std::byte* src, std::byte* dst, const Block& whole) {
  for (int64_t row = 0; row < whole.rows; row += kTileElems) {
    for (int64_t col = 0; col < whole.cols; col += kTileElems) {
      Block tile = whole;
      tile.rows = std::min(kTileElems, whole.rows - row);
      tile.cols = std::min(kTileElems, whole.cols - col);
      loop(src + row * whole.src_row + col * whole.src_col,
           dst + row * whole.dst_row + col * whole.dst_col, tile);
    }
  }
}

/// Takes the row dim of the block out of `list`. A source that runs fastest along another dim than
/// `col` is transposed: that dim becomes the row.
Dim take_row(DimList& list, const Dim& col, bool& transposed) {
  transposed = false;
  if (list.count == 0) return {1, 0, 0};
  int best = list.count - 1;
  for (int at = 0; at < list.count; ++at) {
    const int64_t stride = std::abs(list.dims[at].src);
    // A stride of 0 reads one element over and over: cheap in any order.
    if (stride == 0 || stride >= std::abs(col.src)) continue;
    if (!transposed || stride < std::abs(list.dims[best].src)) best = at;
    transposed = true;
  }
  return list.pop(best);
}

BlockLoop element_loop(Dtype src, Dtype dst) {
  if (src == dst) return loops().copy.elements[std::countr_zero(dtype_bytes(src))];
  return loops().convert.blocks[static_cast<int>(src)][static_cast<int>(dst)];
}

/// Whether runs of so many bytes, `block.dst_row` apart, are worth streaming.
bool streams_well(const Block& block, int64_t run_bytes, const std::byte* dst) {
  const auto places = reinterpret_cast<uintptr_t>(dst) | static_cast<uintptr_t>(block.dst_row) |
                      static_cast<uintptr_t>(run_bytes);
  return run_bytes >= kStreamRunBytes || places % kLineBytes == 0;
}

void check_dtypes(Dtype src, Dtype dst) {
  if (src == dst || (is_floating(src) && is_floating(dst))) return;
  throw UsageError(str_cat("cannot convert ", dtype_name(src), " to ", dtype_name(dst)), "",
                   "Only floating types convert into each other; give both ends one dtype.");
}

}  // namespace

void copy_strided(const StridedEnd& src, const StridedEnd& dst, int ndim, const Dims& size) {
  check_dtypes(src.dtype, dst.dtype);
  bool empty;
  DimList list = dims_of(src, dst, ndim, size, empty);
  if (empty) return;
  int64_t num_elems = 1;
  for (const Dim& dim : list) num_elems *= dim.size;
  sort_for_destination(list);
  merge(list);

  const auto src_bytes = static_cast<int64_t>(dtype_bytes(src.dtype));
  const auto dst_bytes = static_cast<int64_t>(dtype_bytes(dst.dtype));
  const Dim col = list.count > 0 ? list.pop(list.count - 1) : Dim{1, src_bytes, dst_bytes};
  const int64_t run_bytes = col.size * dst_bytes;
  if (run_bytes >= kLineBytes) sort_for_source(list);
  bool transposed;
  const Dim row = take_row(list, col, transposed);
  Block block{row.size, col.size, row.src, col.src, row.dst, col.dst};
  const bool same = src.dtype == dst.dtype;
  const bool dst_runs = col.dst == dst_bytes;
  BlockLoop loop = element_loop(src.dtype, dst.dtype);
  if (same && dst_runs && col.src == src_bytes) {
    loop = loops().copy.rows;
    block.cols *= src_bytes;
  } else if (same && dst_runs && row.src == src_bytes) {
    loop = loops().copy.transpose[std::countr_zero(dtype_bytes(src.dtype))];
    transposed = false;
  }
  block.stream =
      dst_runs && num_elems * dst_bytes >= kStreamBytes && streams_well(block, run_bytes, dst.data);
  for_each_index(list, src.data, dst.data, [&](const std::byte* from, std::byte* to) {
    if (transposed)
      run_tiled(loop, from, to, block);
    else
      loop(from, to, block);
  });
  if (block.stream) loops().copy.fence();
}

void digest_strided(const StridedEnd& src, int ndim, const Dims& size, Digest& digest) {
  bool empty;
  DimList list = dims_of(src, src, ndim, size, empty);  // in logical order: never sorted
  if (empty) return;
  merge(list);
  const auto bytes = static_cast<int64_t>(dtype_bytes(src.dtype));
  const Dim col = list.count > 0 ? list.pop(list.count - 1) : Dim{1, bytes, bytes};
  const BlockLoop gather = element_loop(src.dtype, src.dtype);
  std::byte gathered[kGatherBytes];
  for_each_index(list, src.data, src.data, [&](const std::byte* from, std::byte*) {
    if (col.src == bytes) return digest.update(from, static_cast<size_t>(col.size * bytes));
    for (int64_t at = 0; at < col.size; at += kGatherBytes / bytes) {
      const int64_t count = std::min(kGatherBytes / bytes, col.size - at);
      gather(from + at * col.src, gathered, Block{1, count, 0, col.src, 0, bytes});
      digest.update(gathered, static_cast<size_t>(count * bytes));
    }
  });
}

}  // namespace hybridengine
