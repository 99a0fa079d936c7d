#include "device/kernels/reduce.h"

#include "device/loops/float_runs.h"

// A reduction of 16-bit types widens a *chunk* into a float32 buffer in the nearest cache, combines
// every source into it, and rounds it once. Other types are their own accumulators.

namespace hybridengine::HE_ISA {
namespace {

constexpr int64_t kChunkElems = 1024;

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

/// dst = accumulator / divisor with the one NaN, still in the accumulator's type.
template <class Wide, bool kDivide>
void divide_run(const std::byte* __restrict accumulator, int divisor, std::byte* __restrict dst,
                int64_t count) {
  constexpr int64_t kSize = sizeof(Wide);
  const Wide scale = static_cast<Wide>(divisor);
  for (int64_t at = 0; at < count; ++at) {
    const Wide value = load<Wide>(accumulator + at * kSize);
    store(dst + at * kSize, with_one_nan(kDivide ? value / scale : value));
  }
}

/// The last step of a floating type: the one division, the one NaN, the one rounding.
template <class Element>
void finish_floating(const std::byte* accumulator, int divisor, std::byte* dst, int64_t count) {
  using Wide = Accumulator<Element>;
  constexpr int64_t kWide = sizeof(Wide);
  const auto divide = divisor == 1 ? divide_run<Wide, false> : divide_run<Wide, true>;
  if constexpr (!kIsNarrow<Element>) return divide(accumulator, divisor, dst, count);
  alignas(kLineBytes) std::byte made[kChunkElems * kWide];
  for (int64_t at = 0; at < count; at += kChunkElems) {
    const int64_t some = count - at < kChunkElems ? count - at : kChunkElems;
    divide(accumulator + at * kWide, divisor, made, some);
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
void fold(const std::byte* const* srcs, int num_srcs, int divisor, std::byte* dst, int64_t count) {
  constexpr int64_t kSize = sizeof(Element);
  alignas(kLineBytes) std::byte sum[kChunkElems * sizeof(Accumulator<Element>)];
  for (int64_t at = 0; at < count; at += kChunkElems) {
    const int64_t some = count - at < kChunkElems ? count - at : kChunkElems;
    if constexpr (kIsNarrow<Element>)
      widen_run<Element>(srcs[0] + at * kSize, sum, some);
    else
      __builtin_memcpy(sum, srcs[0] + at * kSize, static_cast<size_t>(some * kSize));
    for (int i = 1; i < num_srcs; ++i) accumulate<Op, Element>(srcs[i] + at * kSize, sum, some);
    finish<Element>(sum, divisor, dst + at * kSize, some);
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
    {finish<double>, finish<float>, finish<Float16>, finish<Bfloat16>, nullptr, nullptr,
     finish<int64_t>, finish<int32_t>, finish<int16_t>, finish<int8_t>, finish<uint8_t>, nullptr},
};
#undef HE_REDUCE_TABLE
#undef HE_REDUCE_ROW

}  // namespace hybridengine::HE_ISA
