// The combination of two accumulators of a reduction, written once for the host and the GPU.
//
// A floating result that is NaN is always the same NaN, and the larger of two zeros is +0, the
// smaller -0: an instruction set may choose otherwise, and ranks on different machines must agree
// to the last bit. min and max are decided on the bits; NaN wins over every number. Sums of
// integers wrap.
#pragma once

#include "device/kernels/convert.h"

namespace hybridengine {

struct Sum {};
struct Min {};
struct Max {};

inline constexpr uint64_t kFloat64Inf = 0x7ff0000000000000;
inline constexpr uint64_t kFloat64QuietNan = 0x7ff8000000000000;

/// The bits of a float as an integer of the same order; -0 comes before +0.
HE_HD static inline int32_t ordered(uint32_t bits) {
  const int32_t value = static_cast<int32_t>(bits);
  return value ^ static_cast<int32_t>(static_cast<uint32_t>(value >> 31) >> 1);
}
HE_HD static inline int64_t ordered(uint64_t bits) {
  const int64_t value = static_cast<int64_t>(bits);
  return value < 0 ? value ^ 0x7fffffffffffffff : value;
}

HE_HD static inline bool is_nan(uint32_t bits) { return (bits & 0x7fffffffu) > kFloat32Inf; }
HE_HD static inline bool is_nan(uint64_t bits) { return (bits << 1) > (kFloat64Inf << 1); }

HE_HD static inline uint32_t quiet_nan(uint32_t) { return kFloat32QuietNan; }
HE_HD static inline uint64_t quiet_nan(uint64_t) { return kFloat64QuietNan; }

template <class Bits>
HE_HD static inline Bits smaller_bits(Bits a, Bits b) {
  const Bits number = ordered(a) < ordered(b) ? a : b;
  return is_nan(a) || is_nan(b) ? quiet_nan(a) : number;
}
template <class Bits>
HE_HD static inline Bits larger_bits(Bits a, Bits b) {
  const Bits number = ordered(a) < ordered(b) ? b : a;
  return is_nan(a) || is_nan(b) ? quiet_nan(a) : number;
}

/// The value, or the one NaN.
HE_HD static inline float with_one_nan(float value) {
  return float_of(is_nan(bits_of(value)) ? kFloat32QuietNan : bits_of(value));
}
HE_HD static inline double with_one_nan(double value) {
  const uint64_t bits = __builtin_bit_cast(uint64_t, value);
  return __builtin_bit_cast(double, is_nan(bits) ? kFloat64QuietNan : bits);
}

HE_HD static inline float combine(Sum, float a, float b) { return with_one_nan(a + b); }
HE_HD static inline double combine(Sum, double a, double b) { return with_one_nan(a + b); }

HE_HD static inline float combine(Min, float a, float b) {
  return float_of(smaller_bits(bits_of(a), bits_of(b)));
}
HE_HD static inline float combine(Max, float a, float b) {
  return float_of(larger_bits(bits_of(a), bits_of(b)));
}
HE_HD static inline double combine(Min, double a, double b) {
  return __builtin_bit_cast(
      double, smaller_bits(__builtin_bit_cast(uint64_t, a), __builtin_bit_cast(uint64_t, b)));
}
HE_HD static inline double combine(Max, double a, double b) {
  return __builtin_bit_cast(
      double, larger_bits(__builtin_bit_cast(uint64_t, a), __builtin_bit_cast(uint64_t, b)));
}

// Integers; the unsigned sum is the wrapping one.
template <class Int>
HE_HD static inline Int combine(Sum, Int a, Int b) {
  return static_cast<Int>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
template <class Int>
HE_HD static inline Int combine(Min, Int a, Int b) {
  return b < a ? b : a;
}
template <class Int>
HE_HD static inline Int combine(Max, Int a, Int b) {
  return a < b ? b : a;
}

}  // namespace hybridengine
