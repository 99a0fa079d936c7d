#include "device/kernels/mask.h"

#include "device/loops/float_runs.h"
#include "device/loops/words.h"

// From scores to masks, from masks to counts and back, and elements out of and into masked runs.
// Elements of 16 bits are widened first: x86-64-v4 compresses lanes of 32 and 64 bits only.

namespace hybridengine::HE_ISA {
namespace {

constexpr int64_t kChunkElems = 1024;

// --- scores to a mask ---

#if defined(__AVX512F__)
template <class Number>
uint64_t compare_word(const std::byte* scores, Number threshold, bool* nan) {
  uint64_t word = 0;
  uint32_t unordered = 0;
  if constexpr (sizeof(Number) == 4) {
    for (int part = 0; part < 4; ++part) {
      const __m512 values = _mm512_loadu_ps(scores + part * 64);
      const __mmask16 kept = _mm512_cmp_ps_mask(values, _mm512_set1_ps(threshold), _CMP_GE_OQ);
      unordered |= _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
      word |= uint64_t{kept} << (part * 16);
    }
  } else {
    for (int part = 0; part < 8; ++part) {
      const __m512d values = _mm512_loadu_pd(scores + part * 64);
      const __mmask8 kept = _mm512_cmp_pd_mask(values, _mm512_set1_pd(threshold), _CMP_GE_OQ);
      unordered |= _mm512_cmp_pd_mask(values, values, _CMP_UNORD_Q);
      word |= uint64_t{kept} << (part * 8);
    }
  }
  *nan |= unordered != 0;
  return word;
}
#elif defined(__SSE2__)
template <class Number>
uint64_t compare_word(const std::byte* scores, Number threshold, bool* nan) {
  uint64_t word = 0;
  int unordered = 0;
  for (int part = 0; part < 256 / int{sizeof(Number) * 4}; ++part) {
    const std::byte* at = scores + part * 16;
    if constexpr (sizeof(Number) == 4) {
      const __m128 values = load<__m128>(at);
      const int kept = _mm_movemask_ps(_mm_cmpge_ps(values, _mm_set1_ps(threshold)));
      unordered |= _mm_movemask_ps(_mm_cmpunord_ps(values, values));
      word |= static_cast<uint64_t>(kept) << (part * 4);
    } else {
      const __m128d values = load<__m128d>(at);
      const int kept = _mm_movemask_pd(_mm_cmpge_pd(values, _mm_set1_pd(threshold)));
      unordered |= _mm_movemask_pd(_mm_cmpunord_pd(values, values));
      word |= static_cast<uint64_t>(kept) << (part * 2);
    }
  }
  *nan |= unordered != 0;
  return word;
}
#else
template <class Number>
uint64_t compare_word(const std::byte* scores, Number threshold, bool* nan) {
  uint64_t word = 0;
  for (int64_t i = 0; i < kWordElems; ++i) {
    const Number score = load<Number>(scores + i * int64_t{sizeof(Number)});
    *nan |= score != score;
    word |= static_cast<uint64_t>(takes_part(score, threshold)) << i;
  }
  return word;
}
#endif

template <class Number>
int64_t compare(const std::byte* scores, int64_t count, Number threshold, std::byte* bits,
                bool* nan) {
  constexpr int64_t kSize = sizeof(Number);
  int64_t kept = 0;
  for (int64_t at = 0; at < count; at += kWordElems) {
    const int64_t left = count - at;
    uint64_t word = 0;
    if (left >= kWordElems) {
      word = compare_word<Number>(scores + at * kSize, threshold, nan);
    } else {
      for (int64_t i = 0; i < left; ++i) {
        const Number score = load<Number>(scores + (at + i) * kSize);
        *nan |= score != score;
        word |= static_cast<uint64_t>(takes_part(score, threshold)) << i;
      }
    }
    store(bits + at / 8, word);
    kept += __builtin_popcountll(word);
  }
  return kept;
}

template <class Element>
int64_t predicate(const std::byte* scores, int64_t count, double threshold, std::byte* bits,
                  bool* nan) {
  if constexpr (sizeof(Element) >= 4) {
    return compare<Element>(scores, count, static_cast<Element>(threshold), bits, nan);
  } else {
    alignas(kLineBytes) std::byte wide[kChunkElems * 4];
    int64_t kept = 0;
    for (int64_t at = 0; at < count; at += kChunkElems) {
      const int64_t some = count - at < kChunkElems ? count - at : kChunkElems;
      widen_run<Element>(scores + at * 2, wide, some);
      kept += compare<float>(wide, some, static_cast<float>(threshold), bits + at / 8, nan);
    }
    return kept;
  }
}

// --- elements of one size, out of and into a masked run ---

#if defined(__AVX512F__)
/// Whole words only. Writes up to a cache line past what it keeps.
template <class Unit>
int64_t compact_word(const std::byte* src, uint64_t word, std::byte* dst) {
  const std::byte* const begin = dst;
  constexpr int kLanes = sizeof(Unit) == 8 ? 8 : 16;
  for (int at = 0; at < kWordElems; at += kLanes) {
    const auto lanes = static_cast<uint32_t>(word >> at) & ((1u << kLanes) - 1);
    const std::byte* from = src + at * int64_t{sizeof(Unit)};
    if constexpr (sizeof(Unit) == 8) {
      const __m512i kept =
          _mm512_maskz_compress_epi64(static_cast<__mmask8>(lanes), _mm512_loadu_si512(from));
      _mm512_storeu_si512(dst, kept);
    } else if constexpr (sizeof(Unit) == 4) {
      const __m512i kept =
          _mm512_maskz_compress_epi32(static_cast<__mmask16>(lanes), _mm512_loadu_si512(from));
      _mm512_storeu_si512(dst, kept);
    } else {
      const __m512i wide = _mm512_cvtepu16_epi32(load<__m256i>(from));
      const __m512i kept = _mm512_maskz_compress_epi32(static_cast<__mmask16>(lanes), wide);
      store(dst, _mm512_cvtepi32_epi16(kept));
    }
    dst += __builtin_popcount(lanes) * int64_t{sizeof(Unit)};
  }
  return (dst - begin) / int64_t{sizeof(Unit)};
}
#endif

template <class Unit>
int64_t compact(const std::byte* src, const std::byte* bits, int64_t count, std::byte* dst) {
  constexpr int64_t kSize = sizeof(Unit);
  int64_t made = 0;
  for (int64_t at = 0; at < count; at += kWordElems) {
    const uint64_t word = word_at(bits, at);
    if (word == 0) continue;
    const std::byte* from = src + at * kSize;
    std::byte* to = dst + made * kSize;
    if (word == kAllElems) {
      __builtin_memcpy(to, from, kWordElems * kSize);
      made += kWordElems;
      continue;
    }
#if defined(__AVX512F__)
    if constexpr (kSize > 1)
      if (count - at >= kWordElems) {
        made += compact_word<Unit>(from, word, to);
        continue;
      }
#endif
    made += each_bit(word, [&](int64_t i, int64_t before) {
      store(to + before * kSize, load<Unit>(from + i * kSize));
    });
  }
  return made;
}

#if defined(__AVX512F__)
/// Whole words only. Reads up to a cache line past what it takes.
template <class Unit>
int64_t expand_word(const std::byte* src, uint64_t word, Unit fill, std::byte* dst) {
  const std::byte* const begin = src;
  constexpr int kLanes = sizeof(Unit) == 8 ? 8 : 16;
  for (int at = 0; at < kWordElems; at += kLanes) {
    const auto lanes = static_cast<uint32_t>(word >> at) & ((1u << kLanes) - 1);
    std::byte* to = dst + at * int64_t{sizeof(Unit)};
    if constexpr (sizeof(Unit) == 8) {
      const __m512i rest = _mm512_set1_epi64(static_cast<int64_t>(fill));
      _mm512_storeu_si512(to, _mm512_mask_expand_epi64(rest, static_cast<__mmask8>(lanes),
                                                       _mm512_loadu_si512(src)));
    } else if constexpr (sizeof(Unit) == 4) {
      const __m512i rest = _mm512_set1_epi32(static_cast<int32_t>(fill));
      _mm512_storeu_si512(to, _mm512_mask_expand_epi32(rest, static_cast<__mmask16>(lanes),
                                                       _mm512_loadu_si512(src)));
    } else {
      const __m512i rest = _mm512_set1_epi32(fill);
      const __m512i wide = _mm512_cvtepu16_epi32(load<__m256i>(src));
      const __m512i made = _mm512_mask_expand_epi32(rest, static_cast<__mmask16>(lanes), wide);
      store(to, _mm512_cvtepi32_epi16(made));
    }
    src += __builtin_popcount(lanes) * int64_t{sizeof(Unit)};
  }
  return (src - begin) / int64_t{sizeof(Unit)};
}
#endif

template <class Unit>
void expand(const std::byte* src, const std::byte* bits, const std::byte* fill, int64_t count,
            std::byte* dst) {
  constexpr int64_t kSize = sizeof(Unit);
  const Unit rest = load<Unit>(fill);
  for (int64_t at = 0; at < count; at += kWordElems) {
    const uint64_t word = word_at(bits, at);
    const int64_t left = count - at < kWordElems ? count - at : kWordElems;
    std::byte* to = dst + at * kSize;
    const uint64_t all = left == kWordElems ? kAllElems : (uint64_t{1} << left) - 1;
    if (word == all) {
      __builtin_memcpy(to, src, static_cast<size_t>(left * kSize));
      src += left * kSize;
      continue;
    }
#if defined(__AVX512F__)
    if constexpr (kSize > 1)
      if (word != 0 && left == kWordElems) {
        src += expand_word<Unit>(src, word, rest, to) * kSize;
        continue;
      }
#endif
    for (int64_t i = 0; i < left; ++i) store(to + i * kSize, rest);
    src += kSize * each_bit(word, [&](int64_t i, int64_t before) {
             store(to + i * kSize, load<Unit>(src + before * kSize));
           });
  }
}

// --- counts to and from masks ---

int64_t count(const std::byte* bits, int64_t words) {
  int64_t set = 0;
  for (int64_t word = 0; word < words; ++word)
    set += __builtin_popcountll(load<uint64_t>(bits + word * 8));
  return set;
}

void test(const int32_t* counts, int64_t count, int32_t pattern, std::byte* bits) {
  for (int64_t at = 0; at < count; at += kWordElems) {
    uint64_t word = 0;
#if defined(__AVX512F__)
    if (count - at >= kWordElems) {
      for (int part = 0; part < 4; ++part)
        word |= uint64_t{_mm512_test_epi32_mask(_mm512_loadu_si512(counts + at + part * 16),
                                                _mm512_set1_epi32(pattern))}
                << (part * 16);
      store(bits + at / 8, word);
      continue;
    }
#endif
    const int64_t left = count - at < kWordElems ? count - at : kWordElems;
    for (int64_t i = 0; i < left; ++i)
      word |= static_cast<uint64_t>((counts[at + i] & pattern) != 0) << i;
    store(bits + at / 8, word);
  }
}

void add_plane(const std::byte* bits, int64_t count, int32_t value, int32_t* counts) {
  for (int64_t at = 0; at < count; at += kWordElems) {
    const uint64_t word = word_at(bits, at);
    const int64_t left = count - at < kWordElems ? count - at : kWordElems;
    for (int64_t i = 0; i < left; ++i)
      counts[at + i] += value & -static_cast<int32_t>((word >> i) & 1);
  }
}

static_assert(static_cast<int>(Dtype::kFloat64) == 0 && static_cast<int>(Dtype::kFloat32) == 1 &&
              static_cast<int>(Dtype::kFloat16) == 2 && static_cast<int>(Dtype::kBfloat16) == 3);

}  // namespace

const MaskLoops kMaskLoops{
    {predicate<double>, predicate<float>, predicate<Float16>, predicate<Bfloat16>},
    {compact<uint8_t>, compact<uint16_t>, compact<uint32_t>, compact<uint64_t>},
    {expand<uint8_t>, expand<uint16_t>, expand<uint32_t>, expand<uint64_t>},
    count,
    test,
    add_plane,
};

}  // namespace hybridengine::HE_ISA
