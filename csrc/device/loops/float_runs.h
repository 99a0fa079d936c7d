// Contiguous runs of a floating type widened to float32 and rounded back: the two halves of every
// conversion and reduction.
//
// float16 uses the CPU's own instructions where the set has them: they follow the rule of
// kernels/convert.h to the last bit, and the compiler does not find them in it. bfloat16 does not:
// vcvtneps2bf16 takes denormals for zero.
#pragma once

#include "device/kernels/convert.h"
#include "device/loops/parts.h"

namespace hybridengine::HE_ISA {

template <class Element>
static constexpr bool kIsFloat16 = false;
template <>
constexpr bool kIsFloat16<Float16> = true;

/// The type in which elements are summed: float32 for those of 16 bits.
template <class Element>
struct AccumulatorOf {
  using Type = Element;
};
template <>
struct AccumulatorOf<Float16> {
  using Type = float;
};
template <>
struct AccumulatorOf<Bfloat16> {
  using Type = float;
};
template <class Element>
using Accumulator = typename AccumulatorOf<Element>::Type;

// Copies of these in every loop that calls them took long to compile; beside a run a call is
// nothing.
#define HE_ONCE [[gnu::noinline]] static

/// The float32 numbers dst[i] = to_float(src[i]). Addresses may be unaligned.
template <class Src>
HE_ONCE void widen_run(const std::byte* __restrict src, std::byte* __restrict dst, int64_t count) {
  int64_t at = 0;
#if defined(__F16C__)
  if constexpr (kIsFloat16<Src>)
    for (; at + 8 <= count; at += 8)
      store(dst + at * 4, _mm256_cvtph_ps(load<__m128i>(src + at * 2)));
#endif
  for (; at < count; ++at)
    store(dst + at * 4, to_float(load<Src>(src + at * int64_t{sizeof(Src)})));
}

/// The inverse: float32 numbers rounded to nearest even.
template <class Dst>
HE_ONCE void narrow_run(const std::byte* __restrict src, std::byte* __restrict dst, int64_t count) {
  int64_t at = 0;
#if defined(__F16C__)
  if constexpr (kIsFloat16<Dst>)
    for (; at + 8 <= count; at += 8)
      store(dst + at * 2, _mm256_cvtps_ph(load<__m256>(src + at * 4), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; at < count; ++at) {
    Dst value;
    from_float(load<float>(src + at * 4), value);
    store(dst + at * int64_t{sizeof(Dst)}, value);
  }
}

}  // namespace hybridengine::HE_ISA
