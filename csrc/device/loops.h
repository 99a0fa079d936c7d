// The inner loops of host copies: a block of rows x cols elements, any strides.
//
// What it is not: aware of more than two dims, of overlap or of Dtype's legality; copy.cc decides
// which loop runs over which two dims. Loops are reached through a table because the source of the
// loops is meant to be compiled once per instruction set, the table being chosen at load.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace hybridengine {

inline constexpr int kNumFloatingDtypes = 6;

/// Rows and columns, and the distance between neighbours at both ends, in bytes.
struct Block {
  int64_t rows = 1;
  int64_t cols = 1;
  int64_t src_row = 0, src_col = 0;
  int64_t dst_row = 0, dst_col = 0;
};

/// Moves a block. Addresses may be unaligned; the ends must not overlap.
using BlockLoop = void (*)(const std::byte* src, std::byte* dst, const Block& block);

struct Loops {
  BlockLoop rows;         // cols are bytes, contiguous at both ends (src_col, dst_col unused)
  BlockLoop elements[4];  // elements of 1, 2, 4, 8 bytes
  /// [src][dst], the floating types of Dtype in its order; the diagonal is null.
  BlockLoop convert[kNumFloatingDtypes][kNumFloatingDtypes];
};

/// The loops for this machine.
const Loops& loops();

}  // namespace hybridengine
