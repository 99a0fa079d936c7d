// The inner loops of the host: blocks of rows x cols elements with any strides, and reductions over
// contiguous runs.
//
// What it is not: aware of more than two dims, of overlap or of Dtype's legality; copy.cc and
// reduce.cc decide which loop runs over what. The sources in loops/ are compiled once per
// instruction set, and the table of the best one that the CPU has is chosen when it is first needed
// (isa.h). All tables give the same bits.
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
  /// Stores may bypass the cache: `fence` must follow before anybody else is told of them.
  bool stream = false;
};

/// Moves a block. Addresses may be unaligned; the ends must not overlap.
using BlockLoop = void (*)(const std::byte* src, std::byte* dst, const Block& block);

struct CopyLoops {
  BlockLoop rows;         // cols are bytes, contiguous at both ends (src_col, dst_col unused)
  BlockLoop elements[4];  // elements of 1, 2, 4, 8 bytes
  /// The same where rows are contiguous at the source and cols at the destination (src_row and
  /// dst_col are the size of an element).
  BlockLoop transpose[4];
  /// Orders what was streamed before what this thread stores next.
  void (*fence)();
};

struct ConvertLoops {
  /// [src][dst], the floating types of Dtype in its order; the diagonal is null.
  BlockLoop blocks[kNumFloatingDtypes][kNumFloatingDtypes];
};

enum class ReduceOp : uint8_t { kSum, kMin, kMax };
inline constexpr int kNumReduceOps = 3;

/// For each of `count` elements: dst = dst op src. The ends must not overlap.
using ReduceLoop = void (*)(const std::byte* src, std::byte* dst, int64_t count);
/// dst = accumulator / divisor, rounded to the type of dst.
using FinishLoop = void (*)(const std::byte* accumulator, int divisor, std::byte* dst,
                            int64_t count);
/// dst = (srcs[0] op srcs[1] op ...) / divisor; dst may be one of the sources.
using FoldLoop = void (*)(const std::byte* const* srcs, int num_srcs, int divisor, std::byte* dst,
                          int64_t count);

/// The same into two places, past the cache.
using FoldTwiceLoop = void (*)(const std::byte* const* srcs, int num_srcs, int divisor,
                               std::byte* dst, std::byte* copy, int64_t count);

/// By Dtype; null where the type cannot be reduced (reduce.h says which).
struct ReduceLoops {
  ReduceLoop reduce[kNumReduceOps][kNumDtypes];
  ReduceLoop accumulate[kNumReduceOps][kNumDtypes];  // dst is an accumulator
  FoldLoop fold[kNumReduceOps][kNumDtypes];
  FoldTwiceLoop fold_twice[kNumReduceOps][kNumDtypes];
  FinishLoop finish[kNumDtypes];
};

/// Masks have one bit per element, the first in the lowest bit of the first byte. They are read and
/// written in whole words of 64 bits; bits past `count` are 0. device/mask.h says what each loop
/// does.
struct MaskLoops {
  /// The floating types of 64 to 16 bits in the order of Dtype. `threshold` is exact in theirs.
  int64_t (*predicate[4])(const std::byte* scores, int64_t count, double threshold, std::byte* bits,
                          bool* nan);
  /// Elements of 1, 2, 4, 8 bytes, and so are those of the next.
  int64_t (*compact[4])(const std::byte* src, const std::byte* bits, int64_t count, std::byte* dst);
  void (*expand[4])(const std::byte* src, const std::byte* bits, const std::byte* fill,
                    int64_t count, std::byte* dst);
  int64_t (*count)(const std::byte* bits, int64_t words);
  void (*test)(const int32_t* counts, int64_t count, int32_t pattern, std::byte* bits);
  void (*add_plane)(const std::byte* bits, int64_t count, int32_t value, int32_t* counts);
};

/// By Dtype; null where the type cannot be reduced.
struct MaskedSumLoops {
  using Add = int64_t (*)(const std::byte* src, const std::byte* bits, int64_t count,
                          std::byte* accumulator, int32_t* counts);
  void (*start[kNumDtypes])(std::byte* accumulator, int64_t count);
  Add add_compact[kNumDtypes];
  Add add_dense[kNumDtypes];
  void (*finish[kNumDtypes])(const std::byte* accumulator, const int32_t* counts, int divisor,
                             const std::byte* fill, std::byte* dst, int64_t count);
  void (*sum_dense[kNumDtypes])(const std::byte* const* srcs, const std::byte* const* bits,
                                int num_srcs, int64_t count, int divisor, const std::byte* fill,
                                std::byte* dst, std::byte* copy, int32_t* counts, std::byte* kept);
  void (*remember[kNumDtypes])(const std::byte* src, std::byte* residual, int64_t count);
};

struct Loops {
  const CopyLoops& copy;
  const ConvertLoops& convert;
  const ReduceLoops& reduce;
  const MaskLoops& mask;
  const MaskedSumLoops& masked_sum;
};

}  // namespace hybridengine
