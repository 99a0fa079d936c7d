// Conversion of one element between the floating types, written once for the host and the GPU.
//
// Every conversion goes through float32, as torch's does: float64 is rounded to float32 first and
// then, for a type of 16 or 8 bits, a second time (1 + 2^-8 + 2^-40 becomes bfloat16 1.0, not
// 1.0078125). All other conversions round once, to nearest even. What is too large becomes inf,
// except in float8_e4m3fn, which has none: there it becomes +-448, inf too, as in torch 2.13 (older
// releases give NaN). NaN stays NaN; its payload may differ from torch's. Between float32 and
// float16 NaN becomes quiet and keeps the upper bits of its payload: so do the CPU's own
// instructions, which loops may use in place of the rule.
//
// Vocabulary: the *magnitude* of a number is its bits without the sign. Rules work on the bits and
// end in selects, so that a plain loop over them becomes vector code. The float32 operations in
// them are exact or are themselves the rounding; flush-to-zero modes do not change a result.
//
// Functions are static and free of std: loops that use them are compiled once per instruction set,
// and no copy may be shared between those objects.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define HE_HD __host__ __device__
#else
#define HE_HD
#endif

namespace hybridengine {

struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};
struct Float8E4m3fn {
  uint8_t bits;
};
struct Float8E5m2 {
  uint8_t bits;
};

HE_HD static inline uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
HE_HD static inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

/// `yes` or `no`. As masks and not as ?:, behind which the compiler would hide the float32
/// operations in a branch, and a loop with such a branch stays scalar.
HE_HD static inline uint32_t select(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

inline constexpr uint32_t kFloat32Inf = 0x7f800000;
inline constexpr uint32_t kFloat32QuietNan = 0x7fc00000;

/// The float32 of a finite magnitude with `kMantissa` mantissa bits and exponent bias `kBias`,
/// where an exponent of all ones is not special. Exact.
template <int kMantissa, int kBias>
HE_HD static inline uint32_t widen_magnitude(uint32_t magnitude) {
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;
  const uint32_t normal =
      (magnitude << (23 - kMantissa)) + (static_cast<uint32_t>(127 - kBias) << 23);
  // A denormal has no leading one: give it one more exponent, then take that one away again.
  const uint32_t denormal = bits_of(float_of(normal + (1u << 23)) - float_of(kSmallestNormal));
  return select(magnitude < (1u << kMantissa), denormal, normal);
}

/// The magnitude of a finite float32 magnitude in the narrower type, rounded to nearest even. May
/// carry into the exponent of all ones. Meaningless for magnitudes past that type's range.
template <int kMantissa, int kBias>
HE_HD static inline uint32_t narrow_magnitude(uint32_t magnitude) {
  constexpr uint32_t kShift = 23 - kMantissa;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;
  // A number whose unit in the last place is the narrower type's smallest denormal: adding it
  // rounds.
  constexpr uint32_t kRounder = static_cast<uint32_t>(151 - kBias - kMantissa) << 23;
  const uint32_t denormal = bits_of(float_of(magnitude) + float_of(kRounder)) - kRounder;
  const uint32_t odd = (magnitude >> kShift) & 1;
  const uint32_t rebiased = magnitude - (static_cast<uint32_t>(127 - kBias) << 23);
  const uint32_t normal = (rebiased + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
  return select(magnitude < kSmallestNormal, denormal, normal);
}

/// The same for a type that has inf at exponent 31 (bias 15): `kMantissa` is 10 or 2.
template <int kMantissa>
HE_HD static inline uint32_t narrow_ieee(uint32_t magnitude) {
  constexpr uint32_t kInf = 31u << kMantissa;
  constexpr uint32_t kQuietNan = kInf | (1u << (kMantissa - 1));
  const uint32_t nan = kQuietNan | ((magnitude >> (23 - kMantissa)) & ((1u << kMantissa) - 1));
  const uint32_t special = select(magnitude > kFloat32Inf, nan, kInf);
  return select(magnitude >= (143u << 23), special, narrow_magnitude<kMantissa, 15>(magnitude));
}

HE_HD static inline float to_float(double value) { return static_cast<float>(value); }
HE_HD static inline float to_float(float value) { return value; }

HE_HD static inline float to_float(Bfloat16 value) {
  return float_of(static_cast<uint32_t>(value.bits) << 16);
}

HE_HD static inline float to_float(Float16 value) {
  const uint32_t magnitude = value.bits & 0x7fffu;
  const uint32_t quiet = select(magnitude > 0x7c00u, kFloat32QuietNan, kFloat32Inf);
  const uint32_t special = quiet | (magnitude << 13);
  const uint32_t wide = select(magnitude >= 0x7c00u, special, widen_magnitude<10, 15>(magnitude));
  return float_of(wide | (static_cast<uint32_t>(value.bits & 0x8000u) << 16));
}

HE_HD static inline float to_float(Float8E5m2 value) {
  // The upper half of a float16.
  return to_float(Float16{static_cast<uint16_t>(value.bits << 8)});
}

HE_HD static inline float to_float(Float8E4m3fn value) {
  const uint32_t magnitude = value.bits & 0x7fu;
  const uint32_t wide =
      select(magnitude == 0x7fu, kFloat32QuietNan, widen_magnitude<3, 7>(magnitude));
  return float_of(wide | (static_cast<uint32_t>(value.bits & 0x80u) << 24));
}

HE_HD static inline void from_float(float value, double& dst) { dst = value; }
HE_HD static inline void from_float(float value, float& dst) { dst = value; }

HE_HD static inline void from_float(float value, Bfloat16& dst) {
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  dst.bits = static_cast<uint16_t>(select((bits & 0x7fffffffu) > kFloat32Inf, nan, rounded));
}

HE_HD static inline void from_float(float value, Float16& dst) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  dst.bits = static_cast<uint16_t>(sign | narrow_ieee<10>(bits & 0x7fffffffu));
}

HE_HD static inline void from_float(float value, Float8E5m2& dst) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  dst.bits = static_cast<uint8_t>(sign | narrow_ieee<2>(bits & 0x7fffffffu));
}

HE_HD static inline void from_float(float value, Float8E4m3fn& dst) {
  constexpr uint32_t kLargest = 0x7e;            // 448
  constexpr uint32_t kPastLargest = 0x43f00000;  // 480, the next number if the type went on
  const uint32_t bits = bits_of(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t rounded = narrow_magnitude<3, 7>(magnitude);
  const uint32_t in_range = select(rounded > kLargest, kLargest, rounded);
  const uint32_t special = select(magnitude > kFloat32Inf, 0x7fu, kLargest);
  dst.bits = static_cast<uint8_t>(((bits >> 24) & 0x80u) |
                                  select(magnitude >= kPastLargest, special, in_range));
}

/// The conversion of one element.
template <class Dst, class Src>
HE_HD static inline Dst convert(Src value) {
  Dst dst;
  from_float(to_float(value), dst);
  return dst;
}

}  // namespace hybridengine
