#include "device/kernels/reduce.h"

#include "device/loops/float_runs.h"

// A reduction of 16-bit types widens a *chunk* into a float32 buffer in the nearest cache, combines
// every source into it, and rounds it once. Other types are their own accumulators.

namespace hybridengine::HE_ISA {
namespace {

constexpr int64_t kChunkElems = 1024;

// What is folded into two places is folded as so many stretches in turn, for the reason that
// loops/copy.cc has, and each of an odd number of lines. Measured best of 2, 4 and 8 stretches and
// of 256 to 1024 bytes: there are more places than in a copy. Types of 16 bits are bound by their
// conversions, and faster in long chunks.
constexpr int64_t kStretches = 4;
constexpr int64_t kTurnBytes = 512;

template <class Element>
constexpr bool kIsFloating = false;
template <>
constexpr bool kIsFloating<float> = true;
template <>
constexpr bool kIsFloating<double> = true;

template <class Element>
constexpr bool kIsNarrow = sizeof(Element) != sizeof(Accumulator<Element>);

template <class Op, class Element>
void combine_runs(const std::byte* __restrict src, std::byte* __restrict dst, int64_t count) {
  constexpr int64_t kSize = sizeof(Element);
  for (int64_t at = 0; at < count; ++at)
    store(dst + at * kSize,
          combine(Op{}, load<Element>(dst + at * kSize), load<Element>(src + at * kSize)));
}

template <class Op, class Element>
void accumulate(const std::byte* __restrict src, std::byte* __restrict dst, int64_t count) {
  if constexpr (!kIsNarrow<Element>) {
    combine_runs<Op, Element>(src, dst, count);
  } else if constexpr (kIsFloat16<Element>) {
    alignas(kLineBytes) std::byte wide[kChunkElems * 4];
    for (int64_t at = 0; at < count; at += kChunkElems) {
      const int64_t some = count - at < kChunkElems ? count - at : kChunkElems;
      widen_run<Element>(src + at * 2, wide, some);
      combine_runs<Op, float>(wide, dst + at * 4, some);
    }
  } else {
    for (int64_t at = 0; at < count; ++at)
      store(dst + at * 4,
            combine(Op{}, load<float>(dst + at * 4), to_float(load<Element>(src + at * 2))));
  }
}

template <class Op, class Element>
void reduce(const std::byte* __restrict src, std::byte* __restrict dst, int64_t count) {
  if constexpr (!kIsNarrow<Element>) {
    combine_runs<Op, Element>(src, dst, count);
  } else if constexpr (kIsFloat16<Element>) {
    alignas(kLineBytes) std::byte wide[kChunkElems * 4];
    for (int64_t at = 0; at < count; at += kChunkElems) {
      const int64_t some = count - at < kChunkElems ? count - at : kChunkElems;
      widen_run<Element>(dst + at * 2, wide, some);
      accumulate<Op, Element>(src + at * 2, wide, some);
      narrow_run<Element>(wide, dst + at * 2, some);
    }
  } else {
    for (int64_t at = 0; at < count; ++at) {
      Element sum;
      from_float(combine(Op{}, to_float(load<Element>(dst + at * 2)),
                         to_float(load<Element>(src + at * 2))),
                 sum);
      store(dst + at * 2, sum);
    }
  }
}

enum class Scale { kNone, kMultiply, kDivide };

/// dst = accumulator / divisor with the one NaN, still in the accumulator's type. A power of two
/// has an exact reciprocal, by which numbers are multiplied much faster, to the same bits.
template <class Wide, Scale kScale>
void scale_run(const std::byte* __restrict accumulator, int divisor, std::byte* __restrict dst,
               int64_t count) {
  constexpr int64_t kSize = sizeof(Wide);
  const Wide whole = static_cast<Wide>(divisor), part = 1 / whole;
  for (int64_t at = 0; at < count; ++at) {
    Wide value = load<Wide>(accumulator + at * kSize);
    if constexpr (kScale == Scale::kMultiply) value *= part;
    if constexpr (kScale == Scale::kDivide) value /= whole;
    store(dst + at * kSize, with_one_nan(value));
  }
}

template <class Wide>
void divide_run(const std::byte* accumulator, int divisor, std::byte* dst, int64_t count) {
  if (divisor == 1) return scale_run<Wide, Scale::kNone>(accumulator, divisor, dst, count);
  if ((divisor & (divisor - 1)) == 0)
    return scale_run<Wide, Scale::kMultiply>(accumulator, divisor, dst, count);
  scale_run<Wide, Scale::kDivide>(accumulator, divisor, dst, count);
}

/// The last step of a floating type: the one division, the one NaN, the one rounding.
template <class Element>
void finish_floating(const std::byte* accumulator, int divisor, std::byte* dst, int64_t count) {
  using Wide = Accumulator<Element>;
  constexpr int64_t kWide = sizeof(Wide);
  if constexpr (!kIsNarrow<Element>) return divide_run<Wide>(accumulator, divisor, dst, count);
  alignas(kLineBytes) std::byte made[kChunkElems * kWide];
  for (int64_t at = 0; at < count; at += kChunkElems) {
    const int64_t some = count - at < kChunkElems ? count - at : kChunkElems;
    divide_run<Wide>(accumulator + at * kWide, divisor, made, some);
    narrow_run<Element>(made, dst + at * 2, some);
  }
}

template <class Element>
void finish(const std::byte* accumulator, int divisor, std::byte* dst, int64_t count) {
  if constexpr (kIsFloating<Accumulator<Element>>)
    finish_floating<Element>(accumulator, divisor, dst, count);
  else if (count > 0)  // nothing may have no address
    __builtin_memcpy(dst, accumulator, static_cast<size_t>(count) * sizeof(Element));
}

template <class Op, class Element>
void combine_two(const std::byte* __restrict a, const std::byte* __restrict b,
                 std::byte* __restrict dst, int64_t count) {
  constexpr int64_t kSize = sizeof(Element);
  for (int64_t at = 0; at < count; ++at)
    store(dst + at * kSize,
          combine(Op{}, load<Element>(a + at * kSize), load<Element>(b + at * kSize)));
}

/// One chunk: dst = (srcs[0] op srcs[1] op ...) / divisor, from element `at` of the sources. `dst`
/// is no source.
template <class Op, class Element>
void fold_chunk(const std::byte* const* srcs, int num_srcs, int divisor, int64_t at, std::byte* dst,
                int64_t count) {
  constexpr int64_t kSize = sizeof(Element);
  alignas(kLineBytes) std::byte sum[kChunkElems * sizeof(Accumulator<Element>)];
  int taken = 1;
  if constexpr (kIsNarrow<Element>) {
    widen_run<Element>(srcs[0] + at * kSize, sum, count);
  } else if (num_srcs == 1) {
    return finish<Element>(srcs[0] + at * kSize, divisor, dst, count);
  } else {
    const bool is_whole = num_srcs == 2 && divisor == 1;  // has the one NaN already
    std::byte* const both = is_whole ? dst : sum;
    combine_two<Op, Element>(srcs[0] + at * kSize, srcs[1] + at * kSize, both, count);
    if (is_whole) return;
    taken = 2;
  }
  for (int i = taken; i < num_srcs; ++i) accumulate<Op, Element>(srcs[i] + at * kSize, sum, count);
  finish<Element>(sum, divisor, dst, count);
}

template <class Op, class Element>
void fold(const std::byte* const* srcs, int num_srcs, int divisor, std::byte* dst, int64_t count) {
  constexpr int64_t kSize = sizeof(Element);
  alignas(kLineBytes) std::byte made[kChunkElems * sizeof(Element)];
  for (int64_t at = 0; at < count; at += kChunkElems) {
    const int64_t some = count - at < kChunkElems ? count - at : kChunkElems;
    fold_chunk<Op, Element>(srcs, num_srcs, divisor, at, made, some);
    __builtin_memcpy(dst + at * kSize, made, static_cast<size_t>(some * kSize));
  }
}

/// Elements from `at` on; `made` has room for them.
template <class Op, class Element>
void fold_past_cache(const std::byte* const* srcs, int num_srcs, int divisor, int64_t at,
                     std::byte* dst, std::byte* copy, int64_t count, std::byte* made) {
  constexpr int64_t kSize = sizeof(Element);
  fold_chunk<Op, Element>(srcs, num_srcs, divisor, at, made, count);
  stream_run(made, dst + at * kSize, count * kSize);
  stream_run(made, copy + at * kSize, count * kSize);
}

template <class Op, class Element>
void fold_twice(const std::byte* const* srcs, int num_srcs, int divisor, std::byte* dst,
                std::byte* copy, int64_t count) {
  constexpr int64_t kTurnElems = kTurnBytes / int64_t{sizeof(Element)};
  constexpr int64_t kLineElems = kLineBytes / int64_t{sizeof(Element)};
  alignas(kLineBytes) std::byte made[kChunkElems * sizeof(Element)];
  int64_t at = 0;
  if (!kIsNarrow<Element> && count >= 2 * kStretches * kTurnElems) {
    const int64_t each = (count / kStretches / kLineElems - 1) / 2 * 2 * kLineElems + kLineElems;
    for (; at < each; at += kTurnElems) {
      const int64_t some = each - at < kTurnElems ? each - at : kTurnElems;
      for (int64_t stretch = 0; stretch < kStretches; ++stretch)
        fold_past_cache<Op, Element>(srcs, num_srcs, divisor, stretch * each + at, dst, copy, some,
                                     made);
    }
    at = kStretches * each;
  }
  for (; at < count; at += kChunkElems) {
    const int64_t some = count - at < kChunkElems ? count - at : kChunkElems;
    fold_past_cache<Op, Element>(srcs, num_srcs, divisor, at, dst, copy, some, made);
  }
}

// In the order of Dtype. The floating types of 8 bits and bool cannot be reduced.
#define HE_REDUCE_ROW(loop, Op)                                                \
  {loop<Op, double>,  loop<Op, float>,  loop<Op, Float16>, loop<Op, Bfloat16>, \
   nullptr,           nullptr,          loop<Op, int64_t>, loop<Op, int32_t>,  \
   loop<Op, int16_t>, loop<Op, int8_t>, loop<Op, uint8_t>, nullptr}
#define HE_REDUCE_TABLE(loop) \
  {HE_REDUCE_ROW(loop, Sum), HE_REDUCE_ROW(loop, Min), HE_REDUCE_ROW(loop, Max)}

static_assert(static_cast<int>(Dtype::kFloat8E5m2) == 5 && static_cast<int>(Dtype::kInt64) == 6 &&
              static_cast<int>(Dtype::kUint8) == 10 && static_cast<int>(Dtype::kBool) == 11);
static_assert(static_cast<int>(ReduceOp::kSum) == 0 && static_cast<int>(ReduceOp::kMin) == 1 &&
              static_cast<int>(ReduceOp::kMax) == 2);

}  // namespace

const ReduceLoops kReduceLoops{
    HE_REDUCE_TABLE(reduce),
    HE_REDUCE_TABLE(accumulate),
    HE_REDUCE_TABLE(fold),
    HE_REDUCE_TABLE(fold_twice),
    {finish<double>, finish<float>, finish<Float16>, finish<Bfloat16>, nullptr, nullptr,
     finish<int64_t>, finish<int32_t>, finish<int16_t>, finish<int8_t>, finish<uint8_t>, nullptr},
};
#undef HE_REDUCE_TABLE
#undef HE_REDUCE_ROW

}  // namespace hybridengine::HE_ISA
