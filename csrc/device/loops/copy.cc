#include "device/loops/parts.h"

namespace hybridengine::HE_ISA {
namespace {

// How far ahead of what is copied the source is fetched where rows are short: each lies in a page
// of its own, into which the hardware does not look ahead.
constexpr int64_t kAheadBytes = 2048;

// Long streamed rows are copied several at a time, piece by piece in turn: as many pages are read
// from at once as it takes to hide that a row begins with a miss. Measured best of 4, 8 and 16 rows
// and of 64 to 256 bytes, alone and beside another core that does the same.
constexpr int kRowsAtOnce = 8;
constexpr int64_t kLongRowBytes = 512;

// Rows whose pitch is a multiple of a page lie in the same sets of the nearest cache: there, in
// memory of huge pages, longer pieces are twice as fast as lines.
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kPieceBytes = 256;

// A run is copied as kRowsAtOnce rows of at most so many bytes, and of an odd number of lines, so
// that they lie in different sets. Shorter ones than the least are not worth it.
constexpr int64_t kMostOfRunBytes = (64 << 10) + kLineBytes;
constexpr int64_t kLeastOfRunBytes = 4096;

/// Rows of a size known when compiling: loads and stores in place of a call.
template <int kBytes>
void copy_rows_of(const std::byte* __restrict src, std::byte* __restrict dst, const Block& block) {
  for (int64_t row = 0; row < block.rows; ++row)
    __builtin_memcpy(dst + row * block.dst_row, src + row * block.src_row, kBytes);
}

/// One row after the other, fetching ahead.
template <bool kStream>
void copy_short_rows(const std::byte* __restrict src, std::byte* __restrict dst,
                     const Block& block) {
  const int64_t ahead = (kAheadBytes + block.cols - 1) / block.cols;
  for (int64_t row = 0; row < block.rows; ++row) {
    if (row + ahead < block.rows) {
      const std::byte* next = src + (row + ahead) * block.src_row;
      for (int64_t at = 0; at < block.cols; at += kLineBytes) __builtin_prefetch(next + at);
    }
    const std::byte* from = src + row * block.src_row;
    std::byte* to = dst + row * block.dst_row;
    if constexpr (kStream)
      stream_run(from, to, block.cols);
    else
      __builtin_memcpy(to, from, static_cast<size_t>(block.cols));
  }
}

/// kRowsAtOnce rows in turn, each from its first whole line on.
template <int64_t kPiece>
void stream_rows_in_turn(const std::byte* __restrict src, std::byte* __restrict dst,
                         const Block& block) {
  const std::byte* from[kRowsAtOnce];
  std::byte* to[kRowsAtOnce];
  for (int row = 0; row < kRowsAtOnce; ++row) {
    from[row] = src + row * block.src_row;
    to[row] = dst + row * block.dst_row;
    const int64_t head = bytes_to_line(to[row]);
    if (head > 0) __builtin_memcpy(to[row], from[row], static_cast<size_t>(head));
    from[row] += head;
    to[row] += head;
  }
  // Whole pieces that every row has, whatever its head.
  const int64_t whole = (block.cols - kLineBytes) / kPiece * kPiece;
  for (int64_t at = 0; at < whole; at += kPiece)
    for (int row = 0; row < kRowsAtOnce; ++row)
      for (int64_t line = at; line < at + kPiece; line += kLineBytes)
        stream_line(from[row] + line, to[row] + line);
  for (int row = 0; row < kRowsAtOnce; ++row) {
    const int64_t done = from[row] - (src + row * block.src_row) + whole;
    stream_run(from[row] + whole, to[row] + whole, block.cols - done);
  }
}

void stream_long_run(const std::byte* __restrict src, std::byte* __restrict dst, int64_t bytes) {
  while (bytes >= kRowsAtOnce * kLeastOfRunBytes) {
    int64_t cols = bytes / kRowsAtOnce / kLineBytes * kLineBytes;
    if (cols / kLineBytes % 2 == 0) cols -= kLineBytes;
    if (cols > kMostOfRunBytes) cols = kMostOfRunBytes;
    stream_rows_in_turn<kLineBytes>(src, dst, {kRowsAtOnce, cols, cols, 0, cols, 0, true});
    src += kRowsAtOnce * cols;
    dst += kRowsAtOnce * cols;
    bytes -= kRowsAtOnce * cols;
  }
  stream_run(src, dst, bytes);
}

void stream_long_rows(const std::byte* __restrict src, std::byte* __restrict dst,
                      const Block& block) {
  const bool paged = block.src_row % kPageBytes == 0 || block.dst_row % kPageBytes == 0;
  const BlockLoop in_turn =
      paged ? stream_rows_in_turn<kPieceBytes> : stream_rows_in_turn<kLineBytes>;
  int64_t row = 0;
  for (; row + kRowsAtOnce <= block.rows; row += kRowsAtOnce)
    in_turn(src + row * block.src_row, dst + row * block.dst_row, block);
  for (; row < block.rows; ++row)
    stream_long_run(src + row * block.src_row, dst + row * block.dst_row, block.cols);
}

void stream_rows(const std::byte* __restrict src, std::byte* __restrict dst, const Block& block) {
  if (block.cols >= 2 * kRowsAtOnce * kLeastOfRunBytes)
    for (int64_t row = 0; row < block.rows; ++row)
      stream_long_run(src + row * block.src_row, dst + row * block.dst_row, block.cols);
  else if (block.cols >= kLongRowBytes && block.src_row != block.cols)
    stream_long_rows(src, dst, block);
  else
    copy_short_rows<true>(src, dst, block);
}

void copy_rows(const std::byte* __restrict src, std::byte* __restrict dst, const Block& block) {
  if (block.stream) return stream_rows(src, dst, block);
  switch (block.cols) {
    case 2:
      return copy_rows_of<2>(src, dst, block);
    case 4:
      return copy_rows_of<4>(src, dst, block);
    case 8:
      return copy_rows_of<8>(src, dst, block);
    case 16:
      return copy_rows_of<16>(src, dst, block);
    case 32:
      return copy_rows_of<32>(src, dst, block);
    default:
      return copy_short_rows<false>(src, dst, block);
  }
}

template <class Element>
void copy_elements(const std::byte* __restrict src, std::byte* __restrict dst, const Block& block) {
  for (int64_t row = 0; row < block.rows; ++row) {
    const std::byte* from = src + row * block.src_row;
    std::byte* to = dst + row * block.dst_row;
    for (int64_t col = 0; col < block.cols; ++col)
      store(to + col * block.dst_col, load<Element>(from + col * block.src_col));
  }
}

void fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace

const CopyLoops kCopyLoops{
    copy_rows,
    {copy_elements<uint8_t>, copy_elements<uint16_t>, copy_elements<uint32_t>,
     copy_elements<uint64_t>},
    {transpose_1, transpose_2, transpose_4, transpose_8},
    fence,
};

}  // namespace hybridengine::HE_ISA
