// Element types that the engine moves. Names are torch's, without the "torch." prefix.
//
// What it is not: arithmetic. Conversions live in device/kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hybridengine {

enum class Dtype : uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBfloat16,
  kFloat8E4m3fn,
  kFloat8E5m2,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUint8,
  kBool,
};

inline constexpr int kNumDtypes = 12;

/// Bytes of one element: 1, 2, 4 or 8.
size_t dtype_bytes(Dtype dtype);

/// torch's name: "float32", "bfloat16", "float8_e4m3fn", "bool", ...
std::string_view dtype_name(Dtype dtype);

/// The inverse of dtype_name. Throws UsageError that lists the legal names.
Dtype parse_dtype(std::string_view name);

/// True for the six floating types: only these may be converted into each other.
bool is_floating(Dtype dtype);

/// The type in which a Move from `src` to `dst` travels: the one with fewer bytes, so that a
/// conversion never inflates the wire. Of two equally wide types it is `dst`.
Dtype wire_dtype(Dtype src, Dtype dst);

}  // namespace hybridengine
