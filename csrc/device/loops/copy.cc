#include "device/loops/parts.h"

namespace hybridengine::HE_ISA {
namespace {

// How far ahead of what is copied the source is fetched where rows are short: each lies in a page
// of its own, into which the hardware does not look ahead.
constexpr int64_t kAheadBytes = 2048;

// Long streamed rows are copied several at a time, piece by piece in turn: as many pages are read
// from at once as it takes to hide that a row begins with a miss. Measured best of 2, 4, 8 and 16
// rows and of 64 to 1024 bytes.
constexpr int kRowsAtOnce = 8;
constexpr int64_t kPieceBytes = 256;
constexpr int64_t kLongRowBytes = 1024;

// A run longer than this is copied as rows of so many bytes.
constexpr int64_t kPageBytes = 4096;

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
  const int64_t whole = (block.cols - kLineBytes) / kPieceBytes * kPieceBytes;
  for (int64_t at = 0; at < whole; at += kPieceBytes)
    for (int row = 0; row < kRowsAtOnce; ++row)
      for (int64_t line = at; line < at + kPieceBytes; line += kLineBytes)
        stream_line(from[row] + line, to[row] + line);
  for (int row = 0; row < kRowsAtOnce; ++row) {
    const int64_t done = from[row] - (src + row * block.src_row) + whole;
    stream_run(from[row] + whole, to[row] + whole, block.cols - done);
  }
}

void stream_long_rows(const std::byte* __restrict src, std::byte* __restrict dst,
                      const Block& block) {
  int64_t row = 0;
  for (; row + kRowsAtOnce <= block.rows; row += kRowsAtOnce)
    stream_rows_in_turn(src + row * block.src_row, dst + row * block.dst_row, block);
  for (; row < block.rows; ++row)
    stream_run(src + row * block.src_row, dst + row * block.dst_row, block.cols);
}

void stream_rows(const std::byte* __restrict src, std::byte* __restrict dst, const Block& block) {
  if (block.cols >= 2 * kRowsAtOnce * kPageBytes) {
    const int64_t pages = block.cols / kPageBytes;
    const Block paged{pages, kPageBytes, kPageBytes, 0, kPageBytes, 0, true};
    for (int64_t row = 0; row < block.rows; ++row) {
      const std::byte* from = src + row * block.src_row;
      std::byte* to = dst + row * block.dst_row;
      stream_long_rows(from, to, paged);
      stream_run(from + pages * kPageBytes, to + pages * kPageBytes,
                 block.cols - pages * kPageBytes);
    }
  } else if (block.cols >= kLongRowBytes && block.src_row != block.cols) {
    stream_long_rows(src, dst, block);
  } else {
    copy_short_rows<true>(src, dst, block);
  }
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
