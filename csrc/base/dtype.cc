#include "base/dtype.h"

#include <array>
#include <string>

#include "base/error.h"

namespace hybridengine {
namespace {

struct DtypeRow {
  std::string_view name;
  size_t bytes;
  bool floating;
};

constexpr std::array<DtypeRow, kNumDtypes> kDtypes{{
    {"float64", 8, true},
    {"float32", 4, true},
    {"float16", 2, true},
    {"bfloat16", 2, true},
    {"float8_e4m3fn", 1, true},
    {"float8_e5m2", 1, true},
    {"int64", 8, false},
    {"int32", 4, false},
    {"int16", 2, false},
    {"int8", 1, false},
    {"uint8", 1, false},
    {"bool", 1, false},
}};

const DtypeRow& row(Dtype dtype) { return kDtypes.at(static_cast<size_t>(dtype)); }

}  // namespace

size_t dtype_bytes(Dtype dtype) { return row(dtype).bytes; }

std::string_view dtype_name(Dtype dtype) { return row(dtype).name; }

bool is_floating(Dtype dtype) { return row(dtype).floating; }

Dtype parse_dtype(std::string_view name) {
  std::string legal;
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
    legal += (i ? ", " : "") + std::string(kDtypes[i].name);
  }
  throw UsageError(str_cat("'", name, "' is not an element type"), "", "Use one of " + legal + ".");
}

Dtype wire_dtype(Dtype src, Dtype dst) { return dtype_bytes(src) < dtype_bytes(dst) ? src : dst; }

}  // namespace hybridengine
