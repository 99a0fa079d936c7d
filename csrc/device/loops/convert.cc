#include "device/loops/float_runs.h"

namespace hybridengine::HE_ISA {
namespace {

// Elements that are converted at a time where they pass through a buffer: it stays in the nearest
// cache, and its lines are whole.
constexpr int64_t kChunkElems = 512;

// A long run that is streamed is converted as so many stretches in turn, for the reason that
// loops/copy.cc has, and each of an odd number of lines of the destination.
constexpr int kStretches = 8;
constexpr int64_t kTurnElems = 128;
constexpr int64_t kMostStretchElems = 32 << 10, kLeastStretchElems = 2048;

template <class Src, class Dst>
void convert_run(const std::byte* __restrict src, std::byte* __restrict dst, int64_t count) {
  if constexpr (sizeof(Src) == 4) {
    narrow_run<Dst>(src, dst, count);
  } else if constexpr (sizeof(Dst) == 4) {
    widen_run<Src>(src, dst, count);
  } else {
    alignas(kLineBytes) std::byte wide[kChunkElems * 4];
    for (int64_t at = 0; at < count; at += kChunkElems) {
      const int64_t some = count - at < kChunkElems ? count - at : kChunkElems;
      widen_run<Src>(src + at * int64_t{sizeof(Src)}, wide, some);
      narrow_run<Dst>(wide, dst + at * int64_t{sizeof(Dst)}, some);
    }
  }
}

/// `count` elements by way of the nearest cache; `made` has room for them.
template <class Src, class Dst>
void convert_past_cache(const std::byte* __restrict src, std::byte* __restrict dst, int64_t count,
                        std::byte* __restrict made) {
  convert_run<Src, Dst>(src, made, count);
  stream_run(made, dst, count * int64_t{sizeof(Dst)});
}

template <class Src, class Dst>
void convert_stretches(const std::byte* __restrict src, std::byte* __restrict dst, int64_t count) {
  alignas(kLineBytes) std::byte made[kTurnElems * sizeof(Dst)];
  for (int64_t at = 0; at < count; at += kTurnElems) {
    const int64_t some = count - at < kTurnElems ? count - at : kTurnElems;
    for (int64_t stretch = 0; stretch < kStretches; ++stretch) {
      const int64_t elem = stretch * count + at;
      convert_past_cache<Src, Dst>(src + elem * int64_t{sizeof(Src)},
                                   dst + elem * int64_t{sizeof(Dst)}, some, made);
    }
  }
}

/// A run whose result is written past the cache.
template <class Src, class Dst>
void convert_streamed(const std::byte* __restrict src, std::byte* __restrict dst, int64_t count) {
  constexpr int64_t kLineElems = kLineBytes / int64_t{sizeof(Dst)};
  alignas(kLineBytes) std::byte made[kChunkElems * sizeof(Dst)];
  // The first chunk is shorter, so that the others begin with a line where elements allow it.
  const int64_t past_line = reinterpret_cast<intptr_t>(dst) & (kLineBytes - 1);
  int64_t some = kChunkElems - past_line / int64_t{sizeof(Dst)};
  for (int64_t at = 0; at < count; some = kChunkElems) {
    if (some > count - at) some = count - at;
    convert_past_cache<Src, Dst>(src + at * int64_t{sizeof(Src)}, dst + at * int64_t{sizeof(Dst)},
                                 some, made);
    at += some;
    while (count - at >= kStretches * kLeastStretchElems) {
      int64_t elems = (count - at) / kStretches;
      if (elems > kMostStretchElems) elems = kMostStretchElems;
      elems = (elems / kLineElems - 1) / 2 * 2 * kLineElems + kLineElems;
      convert_stretches<Src, Dst>(src + at * int64_t{sizeof(Src)}, dst + at * int64_t{sizeof(Dst)},
                                  elems);
      at += kStretches * elems;
    }
  }
}

/// Elements that are not neighbours: gathered, converted as a run, scattered.
template <class Src, class Dst>
void convert_spread(const std::byte* src, std::byte* dst, int64_t count, const Block& block) {
  std::byte gathered[kChunkElems * sizeof(Src)];
  std::byte made[kChunkElems * sizeof(Dst)];
  for (int64_t at = 0; at < count; at += kChunkElems) {
    const int64_t some = count - at < kChunkElems ? count - at : kChunkElems;
    for (int64_t col = 0; col < some; ++col)
      __builtin_memcpy(gathered + col * int64_t{sizeof(Src)}, src + (at + col) * block.src_col,
                       sizeof(Src));
    convert_run<Src, Dst>(gathered, made, some);
    for (int64_t col = 0; col < some; ++col)
      __builtin_memcpy(dst + (at + col) * block.dst_col, made + col * int64_t{sizeof(Dst)},
                       sizeof(Dst));
  }
}

template <class Src, class Dst>
void convert_block(const std::byte* __restrict src, std::byte* __restrict dst, const Block& block) {
  const bool runs = block.src_col == sizeof(Src) && block.dst_col == sizeof(Dst);
  for (int64_t row = 0; row < block.rows; ++row) {
    const std::byte* from = src + row * block.src_row;
    std::byte* to = dst + row * block.dst_row;
    if (!runs)
      convert_spread<Src, Dst>(from, to, block.cols, block);
    else if (block.stream)
      convert_streamed<Src, Dst>(from, to, block.cols);
    else
      convert_run<Src, Dst>(from, to, block.cols);
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

static_assert(static_cast<int>(Dtype::kFloat64) == 0 && static_cast<int>(Dtype::kFloat32) == 1 &&
              static_cast<int>(Dtype::kFloat16) == 2 && static_cast<int>(Dtype::kBfloat16) == 3 &&
              static_cast<int>(Dtype::kFloat8E4m3fn) == 4 &&
              static_cast<int>(Dtype::kFloat8E5m2) == 5);

}  // namespace

const ConvertLoops kConvertLoops{{
    HE_CONVERT_ROW(double),
    HE_CONVERT_ROW(float),
    HE_CONVERT_ROW(Float16),
    HE_CONVERT_ROW(Bfloat16),
    HE_CONVERT_ROW(Float8E4m3fn),
    HE_CONVERT_ROW(Float8E5m2),
}};
#undef HE_CONVERT_ROW

}  // namespace hybridengine::HE_ISA
