#include "device/loops.h"

#include "device/kernels/convert.h"

// No std inline function is used here, and everything but the table has internal linkage: objects
// of this file for different instruction sets must not share symbols.

namespace hybridengine {
namespace {

template <class Element>
inline Element load(const std::byte* address) {
  Element value;
  __builtin_memcpy(&value, address, sizeof value);
  return value;
}

template <class Element>
inline void store(std::byte* address, Element value) {
  __builtin_memcpy(address, &value, sizeof value);
}

/// Rows of a size known when compiling: a load and a store in place of a call.
template <int kBytes>
void copy_rows_of(const std::byte* __restrict src, std::byte* __restrict dst, const Block& block) {
  for (int64_t row = 0; row < block.rows; ++row)
    __builtin_memcpy(dst + row * block.dst_row, src + row * block.src_row, kBytes);
}

void copy_rows(const std::byte* __restrict src, std::byte* __restrict dst, const Block& block) {
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
    case 64:
      return copy_rows_of<64>(src, dst, block);
    default:
      break;
  }
  for (int64_t row = 0; row < block.rows; ++row)
    __builtin_memcpy(dst + row * block.dst_row, src + row * block.src_row,
                     static_cast<size_t>(block.cols));
}

/// Strides of contiguous columns are constants in their own instance, which then becomes vector
/// code.
template <class Src, class Dst>
void convert_rows(const std::byte* __restrict src, std::byte* __restrict dst, const Block& block) {
  for (int64_t row = 0; row < block.rows; ++row) {
    const std::byte* __restrict from = src + row * block.src_row;
    std::byte* __restrict to = dst + row * block.dst_row;
    for (int64_t col = 0; col < block.cols; ++col)
      store(to + col * int64_t{sizeof(Dst)},
            convert<Dst>(load<Src>(from + col * int64_t{sizeof(Src)})));
  }
}

template <class Src, class Dst>
void convert_block(const std::byte* __restrict src, std::byte* __restrict dst, const Block& block) {
  if (block.src_col == sizeof(Src) && block.dst_col == sizeof(Dst))
    return convert_rows<Src, Dst>(src, dst, block);
  for (int64_t row = 0; row < block.rows; ++row) {
    const std::byte* from = src + row * block.src_row;
    std::byte* to = dst + row * block.dst_row;
    for (int64_t col = 0; col < block.cols; ++col)
      store(to + col * block.dst_col, convert<Dst>(load<Src>(from + col * block.src_col)));
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

template <class Src, class Dst>
constexpr BlockLoop kConvert = convert_block<Src, Dst>;
template <class Same>
constexpr BlockLoop kConvert<Same, Same> = nullptr;

// Rows and columns in the order of Dtype, whose first six are the floating types.
#define HE_CONVERT_ROW(Src)                                                      \
  {kConvert<Src, double>,   kConvert<Src, float>,        kConvert<Src, Float16>, \
   kConvert<Src, Bfloat16>, kConvert<Src, Float8E4m3fn>, kConvert<Src, Float8E5m2>}

constexpr Loops kLoops = {
    copy_rows,
    {copy_elements<uint8_t>, copy_elements<uint16_t>, copy_elements<uint32_t>,
     copy_elements<uint64_t>},
    {HE_CONVERT_ROW(double), HE_CONVERT_ROW(float), HE_CONVERT_ROW(Float16),
     HE_CONVERT_ROW(Bfloat16), HE_CONVERT_ROW(Float8E4m3fn), HE_CONVERT_ROW(Float8E5m2)},
};
#undef HE_CONVERT_ROW

static_assert(static_cast<int>(Dtype::kFloat64) == 0 && static_cast<int>(Dtype::kFloat32) == 1 &&
              static_cast<int>(Dtype::kFloat16) == 2 && static_cast<int>(Dtype::kBfloat16) == 3 &&
              static_cast<int>(Dtype::kFloat8E4m3fn) == 4 &&
              static_cast<int>(Dtype::kFloat8E5m2) == 5);

}  // namespace

const Loops& loops() { return kLoops; }

}  // namespace hybridengine
