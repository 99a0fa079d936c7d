// Move: one box of a tensor from a place on one rank to a place on another.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/op.h"
#include "base/rank.h"
#include "layout/box.h"

namespace hybridengine {

enum class Codec : uint8_t { kNone };  // masked and delta join here

/// From a piece of the source layout to a piece of the destination layout.
struct Move {
  int32_t tensor = 0;
  int32_t src_piece = 0;  // index into src layout's pieces(); of step 1: into dst layout's
  int32_t dst_piece = 0;  // index into dst layout's pieces()
  Rank src = 0;
  Rank dst = 0;
  Op op = Op::kCopy;
  Codec codec = Codec::kNone;
  uint8_t step = 0;  // 0 or 1: a move of step 1 may read what step 0 wrote
  Dtype src_dtype = Dtype::kFloat32;
  Dtype dst_dtype = Dtype::kFloat32;
  Box box;

  bool local() const { return src == dst; }
  bool reduces() const { return op != Op::kCopy; }
  /// The type that travels: contributions as they are, so that only their sum is rounded.
  Dtype wire() const { return reduces() ? src_dtype : wire_dtype(src_dtype, dst_dtype); }
  int64_t num_bytes() const {  // on the wire
    return box.num_elems() * static_cast<int64_t>(dtype_bytes(wire()));
  }
  bool operator==(const Move& other) const = default;
};

}  // namespace hybridengine
