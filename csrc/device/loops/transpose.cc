#include "device/loops/parts.h"

// A transposition goes in *tiles*. A tile is read into a buffer in runs of several cache lines, so
// that neither end is touched line by line: lines that lie a wide pitch apart each cost a miss of
// the address translation, and at a pitch of a power of two they share one set of the cache and
// evict each other. From the buffer, whose pitch is skewed for the same reason, *strips* of rows
// that are one line wide are transposed in squares of 16 bytes a side, in registers, and written in
// runs.
//
// Vocabulary: a *row* of the block is contiguous at the destination (its cols are neighbours there)
// and a *col* is contiguous at the source.

namespace hybridengine::HE_ISA {
namespace {

/// Bytes of a run at both ends of a tile of elements of `kSize` bytes; the buffer of one byte would
/// not fit into the nearest caches.
template <int kSize>
constexpr int64_t kRunBytes = kSize == 1 ? 128 : 256;
template <int kSize>
constexpr int64_t kTile = kRunBytes<kSize> / kSize;
template <int kSize>
constexpr int64_t kPitch = kRunBytes<kSize> + kLineBytes;

#if defined(__SSE2__)
using Square = __m128i;
template <int kSize>
inline Square zip_low(Square a, Square b) {
  if constexpr (kSize == 1) return _mm_unpacklo_epi8(a, b);
  if constexpr (kSize == 2) return _mm_unpacklo_epi16(a, b);
  if constexpr (kSize == 4) return _mm_unpacklo_epi32(a, b);
  if constexpr (kSize == 8) return _mm_unpacklo_epi64(a, b);
}
template <int kSize>
inline Square zip_high(Square a, Square b) {
  if constexpr (kSize == 1) return _mm_unpackhi_epi8(a, b);
  if constexpr (kSize == 2) return _mm_unpackhi_epi16(a, b);
  if constexpr (kSize == 4) return _mm_unpackhi_epi32(a, b);
  if constexpr (kSize == 8) return _mm_unpackhi_epi64(a, b);
}

/// Zips vector i with vector i + half, log2 times over: each pass moves one bit of an element's
/// index from its row to its column.
template <int kSize>
inline void transpose_square(const std::byte* src, std::byte* dst) {
  constexpr int64_t kSide = 16 / kSize;
  Square rows[kSide];
  for (int row = 0; row < kSide; ++row) rows[row] = load<Square>(src + row * kPitch<kSize>);
  for (int pass = 1; pass < kSide; pass *= 2) {
    Square next[kSide];
    for (int row = 0; row < kSide / 2; ++row) {
      next[2 * row] = zip_low<kSize>(rows[row], rows[row + kSide / 2]);
      next[2 * row + 1] = zip_high<kSize>(rows[row], rows[row + kSide / 2]);
    }
    for (int row = 0; row < kSide; ++row) rows[row] = next[row];
  }
  for (int row = 0; row < kSide; ++row) store(dst + row * kRunBytes<kSize>, rows[row]);
}
#else
template <int kSize>
inline void transpose_square(const std::byte* src, std::byte* dst) {
  constexpr int kSide = 16 / kSize;
  for (int row = 0; row < kSide; ++row)
    for (int col = 0; col < kSide; ++col)
      __builtin_memcpy(dst + row * kRunBytes<kSize> + col * kSize,
                       src + col * kPitch<kSize> + row * kSize, kSize);
}
#endif

/// Writes `rows` rows of `cols` elements, whose line of the buffer begins at `read`.
template <int kSize>
void write_strip(const std::byte* read, std::byte* dst, const Block& block, int64_t rows,
                 int64_t cols) {
  constexpr int64_t kSide = 16 / kSize;
  alignas(kLineBytes) std::byte turned[kLineBytes / kSize * kRunBytes<kSize>];
  // Squares may reach past the tile, into what nobody reads.
  for (int64_t row = 0; row < rows; row += kSide)
    for (int64_t col = 0; col < cols; col += kSide)
      transpose_square<kSize>(read + col * kPitch<kSize> + row * kSize,
                              turned + row * kRunBytes<kSize> + col * kSize);
  for (int64_t row = 0; row < rows; ++row) {
    const std::byte* from = turned + row * kRunBytes<kSize>;
    if (block.stream)
      stream_run(from, dst + row * block.dst_row, cols * kSize);
    else if (cols == kTile<kSize>)
      __builtin_memcpy(dst + row * block.dst_row, from, kRunBytes<kSize>);
    else
      __builtin_memcpy(dst + row * block.dst_row, from, static_cast<size_t>(cols * kSize));
  }
}

template <int kSize>
void transpose_tile(const std::byte* src, std::byte* dst, const Block& block, int64_t rows,
                    int64_t cols) {
  alignas(kLineBytes) std::byte read[kTile<kSize> * kPitch<kSize>];
  kCopyLoops.rows(src, read, Block{cols, rows * kSize, block.src_col, 0, kPitch<kSize>, 0, false});
  constexpr int64_t kStripRows = kLineBytes / kSize;
  for (int64_t row = 0; row < rows; row += kStripRows)
    write_strip<kSize>(read + row * kSize, dst + row * block.dst_row, block,
                       rows - row < kStripRows ? rows - row : kStripRows, cols);
}

template <int kSize>
void transpose(const std::byte* src, std::byte* dst, const Block& block) {
  for (int64_t row = 0; row < block.rows; row += kTile<kSize>) {
    const int64_t rows = block.rows - row < kTile<kSize> ? block.rows - row : kTile<kSize>;
    for (int64_t col = 0; col < block.cols; col += kTile<kSize>) {
      const int64_t cols = block.cols - col < kTile<kSize> ? block.cols - col : kTile<kSize>;
      transpose_tile<kSize>(src + row * kSize + col * block.src_col,
                            dst + row * block.dst_row + col * kSize, block, rows, cols);
    }
  }
}

}  // namespace

void transpose_1(const std::byte* src, std::byte* dst, const Block& block) {
  transpose<1>(src, dst, block);
}
void transpose_2(const std::byte* src, std::byte* dst, const Block& block) {
  transpose<2>(src, dst, block);
}
void transpose_4(const std::byte* src, std::byte* dst, const Block& block) {
  transpose<4>(src, dst, block);
}
void transpose_8(const std::byte* src, std::byte* dst, const Block& block) {
  transpose<8>(src, dst, block);
}

}  // namespace hybridengine::HE_ISA
