#include "device/kernels/mask.h"
#include "device/loops/float_runs.h"
#include "device/loops/words.h"

// Sums over the contributors of each element, and how many they are. The caller runs all
// contributors over one stretch that stays in the nearest cache, accumulator and counts with it.

namespace hybridengine::HE_ISA {
namespace {

constexpr int64_t kChunkElems = 1024;

template <class Number>
constexpr bool kIsFloating = false;
template <>
constexpr bool kIsFloating<float> = true;
template <>
constexpr bool kIsFloating<double> = true;

inline float widened(Float16 value) { return to_float(value); }
inline float widened(Bfloat16 value) { return to_float(value); }
template <class Number>
Number widened(Number value) {
  return value;
}

template <class Element>
void start(std::byte* accumulator, int64_t count) {
  constexpr int64_t kSize = sizeof(Accumulator<Element>);
  for (int64_t at = 0; at < count; ++at)
    store(accumulator + at * kSize, nothing(Accumulator<Element>{}));
}

#if defined(__AVX512F__)
template <class Element>
constexpr bool kHasLanes = false;
template <>
constexpr bool kHasLanes<float> = true;
template <>
constexpr bool kHasLanes<Float16> = true;
template <>
constexpr bool kHasLanes<Bfloat16> = true;

/// Sixteen elements as float32.
template <class Element>
static inline __m512 wide_lanes(const std::byte* src) {
  if constexpr (sizeof(Element) == 4)
    return _mm512_loadu_ps(src);
  else if constexpr (kIsFloat16<Element>)
    return _mm512_cvtph_ps(load<__m256i>(src));
  else
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load<__m256i>(src)), 16));
}

/// Whole words only. Where compact, reads up to a cache line past what it takes.
template <class Element, bool kCompact>
void add_word(const std::byte* src, uint64_t word, std::byte* accumulator, int32_t* counts) {
  for (int at = 0; at < kWordElems; at += 16) {
    const auto lanes = static_cast<__mmask16>(word >> at);
    __m512 values = wide_lanes<Element>(src);
    if constexpr (kCompact) values = _mm512_maskz_expand_ps(lanes, values);
    std::byte* to = accumulator + at * 4;
    const __m512 sum = _mm512_loadu_ps(to);
    _mm512_storeu_ps(to, _mm512_mask_add_ps(sum, lanes, sum, values));
    const __m512i seen = _mm512_loadu_si512(counts + at);
    _mm512_storeu_si512(counts + at,
                        _mm512_mask_add_epi32(seen, lanes, seen, _mm512_set1_epi32(1)));
    src += (kCompact ? __builtin_popcount(lanes) : 16) * int64_t{sizeof(Element)};
  }
}
#else
template <class Element>
constexpr bool kHasLanes = false;
template <class Element, bool kCompact>
void add_word(const std::byte*, uint64_t, std::byte*, int32_t*) {}
#endif

template <class Element>
static inline void add_one(const std::byte* src, std::byte* accumulator, int32_t* count) {
  store(accumulator,
        combine(Sum{}, load<Accumulator<Element>>(accumulator), widened(load<Element>(src))));
  ++*count;
}

/// Returns how many took part.
template <class Element, bool kCompact>
int64_t add(const std::byte* src, const std::byte* bits, int64_t count, std::byte* accumulator,
            int32_t* counts) {
  constexpr int64_t kSize = sizeof(Element), kWide = sizeof(Accumulator<Element>);
  int64_t taken = 0;
  for (int64_t at = 0; at < count; at += kWordElems) {
    const uint64_t word = word_at(bits, at);
    if (word == 0) continue;
    const std::byte* from = src + (kCompact ? taken : at) * kSize;
    std::byte* to = accumulator + at * kWide;
    taken += __builtin_popcountll(word);
    if (kHasLanes<Element> && count - at >= kWordElems) {
      add_word<Element, kCompact>(from, word, to, counts + at);
    } else if (word == kAllElems) {
      for (int64_t i = 0; i < kWordElems; ++i)
        add_one<Element>(from + i * kSize, to + i * kWide, counts + at + i);
    } else {
      each_bit(word, [&](int64_t i, int64_t before) {
        add_one<Element>(from + (kCompact ? before : i) * kSize, to + i * kWide, counts + at + i);
      });
    }
  }
  return taken;
}

/// The sum, or the mean over `divisor` or, where that is 0, over the counts.
template <class Number>
static inline Number settled(Number sum, int32_t count, int divisor) {
  if constexpr (kIsFloating<Number>)
    return with_one_nan(sum / static_cast<Number>(divisor == 0 ? count : divisor));
  else
    return sum;
}

template <class Element>
void finish(const std::byte* accumulator, const int32_t* counts, int divisor, const std::byte* fill,
            std::byte* dst, int64_t count) {
  constexpr int64_t kWide = sizeof(Accumulator<Element>), kSize = sizeof(Element);
  const Accumulator<Element> rest = widened(load<Element>(fill));
  alignas(kLineBytes) std::byte made[kChunkElems * kWide];
  for (int64_t at = 0; at < count; at += kChunkElems) {
    const int64_t some = count - at < kChunkElems ? count - at : kChunkElems;
    for (int64_t i = 0; i < some; ++i) {
      const auto sum = load<Accumulator<Element>>(accumulator + (at + i) * kWide);
      const auto value = settled(sum, counts[at + i], divisor);
      store(made + i * kWide, counts[at + i] > 0 ? value : rest);
    }
    if constexpr (kSize == kWide)
      __builtin_memcpy(dst + at * kSize, made, static_cast<size_t>(some * kSize));
    else
      narrow_run<Element>(made, dst + at * kSize, some);
  }
}

#if defined(__AVX512F__)
/// Sixteen elements of what sum_dense() makes, in float32; `lanes_of(i)` says where source i
/// counts.
template <class Element, class LanesOf>
static inline __m512 sum_lanes(const std::byte* const* srcs, int num_srcs, int64_t at, int divisor,
                               __m512 rest, const LanesOf& lanes_of, __m512i& seen) {
  __m512 sum = _mm512_set1_ps(nothing(float{}));
  seen = _mm512_setzero_si512();
  for (int i = 0; i < num_srcs; ++i) {
    const __mmask16 lanes = lanes_of(i);
    const __m512 values = wide_lanes<Element>(srcs[i] + at * int64_t{sizeof(Element)});
    sum = _mm512_mask_add_ps(sum, lanes, sum, values);
    seen = _mm512_mask_add_epi32(seen, lanes, seen, _mm512_set1_epi32(1));
  }
  if (divisor != 1)
    sum = _mm512_div_ps(
        sum, divisor == 0 ? _mm512_cvtepi32_ps(seen) : _mm512_set1_ps(static_cast<float>(divisor)));
  const __mmask16 nan = _mm512_cmp_ps_mask(sum, sum, _CMP_UNORD_Q);
  sum = _mm512_mask_mov_ps(sum, nan, _mm512_castsi512_ps(_mm512_set1_epi32(kFloat32QuietNan)));
  return _mm512_mask_mov_ps(sum, _mm512_testn_epi32_mask(seen, seen), rest);
}

/// Whole words only: how many elements of `count` it has made.
template <class Element>
int64_t sum_words(const std::byte* const* srcs, const std::byte* const* bits, int num_srcs,
                  int64_t begin, int64_t count, int divisor, const std::byte* fill, std::byte* made,
                  int32_t* counts, std::byte* kept) {
  const __m512 rest = _mm512_set1_ps(widened(load<Element>(fill)));
  int64_t at = 0;
  for (; at + kWordElems <= count; at += kWordElems) {
    uint64_t any = 0;
    for (int i = 0; i < num_srcs; ++i) any |= word_at(bits[i], begin + at);
    store(kept + at / 8, any);
    for (int64_t lane = at; lane < at + kWordElems; lane += 16) {
      const auto lanes_of = [&](int i) { return load<__mmask16>(bits[i] + (begin + lane) / 8); };
      __m512i seen;
      const __m512 sum =
          sum_lanes<Element>(srcs, num_srcs, begin + lane, divisor, rest, lanes_of, seen);
      _mm512_storeu_ps(made + lane * 4, sum);
      if (counts != nullptr) _mm512_storeu_si512(counts + lane, seen);
    }
  }
  return at;
}
#endif

/// Elements [begin, begin + count) of what sum_dense() makes, at most a chunk.
template <class Element>
void sum_chunk(const std::byte* const* srcs, const std::byte* const* bits, int num_srcs,
               int64_t begin, int64_t count, int divisor, const std::byte* fill, std::byte* made,
               int32_t* counts, std::byte* kept) {
  constexpr int64_t kSize = sizeof(Element), kWide = sizeof(Accumulator<Element>);
  alignas(kLineBytes) std::byte sum[kChunkElems * kWide];
  int64_t done = 0;
#if defined(__AVX512F__)
  if constexpr (kHasLanes<Element>) {
    std::byte* const wide = kSize == kWide ? made : sum;
    done =
        sum_words<Element>(srcs, bits, num_srcs, begin, count, divisor, fill, wide, counts, kept);
    if constexpr (kSize != kWide) narrow_run<Element>(sum, made, done);
  }
#endif
  const int64_t rest = count - done;
  if (rest == 0) return;
  int32_t seen[kChunkElems];
  __builtin_memset(seen, 0, static_cast<size_t>(rest) * sizeof *seen);
  start<Element>(sum, rest);
  for (int i = 0; i < num_srcs; ++i)
    add<Element, false>(srcs[i] + (begin + done) * kSize, bits[i] + (begin + done) / 8, rest, sum,
                        seen);
  finish<Element>(sum, seen, divisor, fill, made + done * kSize, rest);
  for (int64_t at = 0; at < rest; at += kWordElems) {
    uint64_t any = 0;
    for (int64_t i = at; i < rest && i < at + kWordElems; ++i)
      any |= uint64_t{seen[i] > 0} << (i - at);
    store(kept + (done + at) / 8, any);
  }
  if (counts != nullptr)
    __builtin_memcpy(counts + done, seen, static_cast<size_t>(rest) * sizeof *seen);
}

template <class Element>
void sum_dense(const std::byte* const* srcs, const std::byte* const* bits, int num_srcs,
               int64_t count, int divisor, const std::byte* fill, std::byte* dst, std::byte* copy,
               int32_t* counts, std::byte* kept) {
  constexpr int64_t kSize = sizeof(Element);
  alignas(kLineBytes) std::byte made[kChunkElems * kSize];
  for (int64_t at = 0; at < count; at += kChunkElems) {
    const int64_t some = count - at < kChunkElems ? count - at : kChunkElems;
    sum_chunk<Element>(srcs, bits, num_srcs, at, some, divisor, fill, made,
                       counts == nullptr ? nullptr : counts + at, kept + at / 8);
    stream_run(made, dst + at * kSize, some * kSize);
    stream_run(made, copy + at * kSize, some * kSize);
  }
}

template <class Element>
void remember(const std::byte* src, std::byte* residual, int64_t count) {
  constexpr int64_t kSize = sizeof(Element);
  for (int64_t at = 0; at < count; ++at) {
    const Element value = load<Element>(src + at * kSize);
    const Element old = load<Element>(residual + at * kSize);
    store(residual + at * kSize, may_return(widened(value)) ? value : old);
  }
}

// In the order of Dtype. The floating types of 8 bits and bool cannot be reduced.
#define HE_SUM_ROW(loop)                                                                \
  {loop<double>,  loop<float>,   loop<Float16>, loop<Bfloat16>, nullptr,       nullptr, \
   loop<int64_t>, loop<int32_t>, loop<int16_t>, loop<int8_t>,   loop<uint8_t>, nullptr}
template <class Element>
constexpr MaskedSumLoops::Add add_compact = add<Element, true>;
template <class Element>
constexpr MaskedSumLoops::Add add_dense = add<Element, false>;

static_assert(static_cast<int>(Dtype::kBfloat16) == 3 && static_cast<int>(Dtype::kInt64) == 6 &&
              static_cast<int>(Dtype::kUint8) == 10 && static_cast<int>(Dtype::kBool) == 11);

}  // namespace

const MaskedSumLoops kMaskedSumLoops{
    HE_SUM_ROW(start),  HE_SUM_ROW(add_compact), HE_SUM_ROW(add_dense),
    HE_SUM_ROW(finish), HE_SUM_ROW(sum_dense),   HE_SUM_ROW(remember),
};
#undef HE_SUM_ROW

}  // namespace hybridengine::HE_ISA
