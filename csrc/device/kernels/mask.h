// The rules of a masked reduction for one element, written once for the host and the GPU.
#pragma once

#include "device/kernels/reduce.h"

namespace hybridengine {

/// Whether an element takes part. False for NaN, which callers refuse beforehand.
template <class Number>
HE_HD static inline bool takes_part(Number score, Number threshold) {
  return score >= threshold;
}

// What a sum begins with, by its type. Adding any number gives that number, -0 included: the first
// contributor needs no case of its own, and where all ranks contribute the bits are those of the
// plain reduction.
HE_HD static inline float nothing(float) { return -0.0f; }
HE_HD static inline double nothing(double) { return -0.0; }
template <class Int>
HE_HD static inline Int nothing(Int) {
  return 0;
}

// Whether a masked value may be remembered for the next time: inf and NaN would never go away.
HE_HD static inline bool may_return(float value) {
  return (bits_of(value) & 0x7fffffffu) < kFloat32Inf;
}
HE_HD static inline bool may_return(double value) {
  return (__builtin_bit_cast(uint64_t, value) << 1) < (kFloat64Inf << 1);
}
template <class Int>
HE_HD static inline bool may_return(Int) {
  return true;
}

}  // namespace hybridengine
