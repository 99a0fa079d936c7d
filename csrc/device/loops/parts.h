// The parts of one table of loops, and what their sources share.
//
// The sources in this folder are compiled once per instruction set, with HE_ISA the name of a
// namespace. Objects of different sets must not share a symbol, or the linker would let one set's
// code run on a CPU that lacks it: everything lies in that namespace or has internal linkage, and
// no inline function of std is used. The build refuses weak symbols in these objects.
#pragma once

#include "device/loops.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#ifndef HE_ISA
#error "HE_ISA must name the instruction set"
#endif

namespace hybridengine::HE_ISA {

extern const CopyLoops kCopyLoops;
extern const ConvertLoops kConvertLoops;
extern const ReduceLoops kReduceLoops;
extern const MaskLoops kMaskLoops;
extern const MaskedSumLoops kMaskedSumLoops;

// CopyLoops::transpose, by bytes of an element.
void transpose_1(const std::byte* src, std::byte* dst, const Block& block);
void transpose_2(const std::byte* src, std::byte* dst, const Block& block);
void transpose_4(const std::byte* src, std::byte* dst, const Block& block);
void transpose_8(const std::byte* src, std::byte* dst, const Block& block);

/// A cache line: what a streamed store must fill whole.
inline constexpr int64_t kLineBytes = 64;

template <class Element>
static inline Element load(const std::byte* address) {
  Element value;
  __builtin_memcpy(&value, address, sizeof value);
  return value;
}

template <class Element>
static inline void store(std::byte* address, Element value) {
  __builtin_memcpy(address, &value, sizeof value);
}

/// Copies a cache line past the cache. `dst` is aligned to it.
static inline void stream_line(const std::byte* src, std::byte* dst) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), _mm512_loadu_si512(src));
#elif defined(__AVX__)
  for (int at = 0; at < kLineBytes; at += 32)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(dst + at),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + at)));
#elif defined(__SSE2__)
  for (int at = 0; at < kLineBytes; at += 16)
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + at),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + at)));
#else
  __builtin_memcpy(dst, src, kLineBytes);
#endif
}

/// From `address` to the next begin of a line.
static inline int64_t bytes_to_line(const std::byte* address) {
  return -reinterpret_cast<intptr_t>(address) & (kLineBytes - 1);
}

/// Copies `bytes` with streamed stores wherever a whole line of the destination is written.
static inline void stream_run(const std::byte* src, std::byte* dst, int64_t bytes) {
  const int64_t head = bytes_to_line(dst);
  if (bytes < head + kLineBytes) {
    __builtin_memcpy(dst, src, static_cast<size_t>(bytes));
    return;
  }
  // A variable size is a call, even of nothing.
  if (head > 0) __builtin_memcpy(dst, src, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLineBytes <= bytes; at += kLineBytes) stream_line(src + at, dst + at);
  if (at < bytes) __builtin_memcpy(dst + at, src + at, static_cast<size_t>(bytes - at));
}

}  // namespace hybridengine::HE_ISA
