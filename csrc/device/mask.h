// Masks on the host: scores to bits, elements out of and into masked runs, sums over those ranks
// that take part in each element.
//
// A *mask* has one bit per element, the first in the lowest bit of the first byte, and lies in
// whole words of 64 bits whose last bits are 0 where no element is. *Compact* are the elements
// whose bit is set, one after the other. What it is not: aware of ranks, shapes or packets
// (collective/). Vector code may read and write kMaskSlack bytes past a compact run: whoever owns
// it has that room. Nothing blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace hybridengine {

inline constexpr int64_t kMaskSlack = 64;

/// Words of a mask of `count` elements.
inline int64_t mask_words(int64_t count) { return (count + 63) / 64; }
inline int64_t mask_bytes(int64_t count) { return mask_words(count) * 8; }

/// The threshold that sorts scores of `dtype` as `threshold` does, exact in that type.
double threshold_in(Dtype dtype, double threshold);

/// bits[i] = scores[i] >= threshold. Returns how many are; sets `nan` where a score is NaN.
/// `dtype` is floating, of 16 bits or more; `threshold` comes from threshold_in().
int64_t predicate(Dtype dtype, const std::byte* scores, int64_t count, double threshold,
                  std::byte* bits, bool& nan);

/// How many of the first `count` bits are set.
int64_t count_bits(const std::byte* bits, int64_t count);
bool bit_at(const std::byte* bits, int64_t index);
/// dst[i] = bits[first + i], in whole words.
void copy_bits(const std::byte* bits, int64_t first, int64_t count, std::byte* dst);

/// Appends the elements of a run whose bits are set to `dst`. Returns how many.
int64_t compact(size_t elem_bytes, const std::byte* src, const std::byte* bits, int64_t count,
                std::byte* dst);
/// The inverse: dst[i] is the next of the compact `src` where the bit is set, else `fill`.
void expand(size_t elem_bytes, const std::byte* src, const std::byte* bits, const std::byte* fill,
            int64_t count, std::byte* dst);
/// dst[i] = 0 where the bit is set.
void clear_kept(size_t elem_bytes, const std::byte* bits, int64_t count, std::byte* dst);
/// dst[i] = fill.
void fill_run(size_t elem_bytes, const std::byte* fill, std::byte* dst, int64_t count);

// Runs that are written past the cache, for what nobody reads soon; short ones go through it.
// stream_fence() must follow before other threads are told of them.
void stream_run(const std::byte* src, std::byte* dst, int64_t num_bytes);
void stream_fill(size_t elem_bytes, const std::byte* fill, std::byte* dst, int64_t count);
void stream_fence();

/// bits[i] = (counts[i] & pattern) != 0.
void test_counts(const int32_t* counts, int64_t count, int32_t pattern, std::byte* bits);
/// counts[i] += value where the bit is set.
void add_plane(const std::byte* bits, int64_t count, int32_t value, int32_t* counts);

/// A sum over contributors: begins as nothing, in accumulator_dtype(dtype), with counts of 0.
void start_sum(Dtype dtype, std::byte* accumulator, int32_t* counts, int64_t count);
/// Adds a contributor where its bit is set; `src` is compact, or a run with an element for each
/// bit. Returns how many took part. What is masked is not looked at.
int64_t add_masked(Dtype dtype, bool is_compact, const std::byte* src, const std::byte* bits,
                   int64_t count, std::byte* accumulator, int32_t* counts);
/// dst[i] = accumulator[i] / divisor, or over counts[i] where `divisor` is 0, rounded once to
/// `dtype`; `fill` (of `dtype`) where the count is 0. Integers are not divided.
void finish_sum(Dtype dtype, const std::byte* accumulator, const int32_t* counts, int divisor,
                const std::byte* fill, std::byte* dst, int64_t count);

/// start_sum, add_masked of each source (a run with an element for each bit), finish_sum: at once,
/// into two places that nobody reads soon, past the cache (stream_fence() must follow). kept[i]
/// says whether anybody took part; `counts` may be null. `dst` may be one of the sources.
void sum_dense(Dtype dtype, std::span<const std::byte* const> srcs,
               std::span<const std::byte* const> bits, int64_t count, int divisor,
               const std::byte* fill, std::byte* dst, std::byte* copy, int32_t* counts,
               std::byte* kept);

/// residual[i] = src[i], but for inf and NaN, which leave it as it was.
void remember(Dtype dtype, const std::byte* src, std::byte* residual, int64_t count);

}  // namespace hybridengine
