#include "device/mask.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "device/isa.h"

namespace hybridengine {
namespace {

/// A run is filled from its begin, which stays in the nearest cache: a multiple of every element.
constexpr size_t kFillBytes = 4096;

/// Shorter runs are not worth streaming: the lines at their ends are not whole.
constexpr int64_t kStreamRunBytes = 1024;

size_t index(Dtype dtype) { return static_cast<size_t>(dtype); }
size_t size_index(size_t elem_bytes) { return static_cast<size_t>(std::countr_zero(elem_bytes)); }

uint64_t word_of(const std::byte* bits, int64_t word) {
  uint64_t value = 0;
  std::memcpy(&value, bits + word * 8, sizeof value);
  return value;
}

uint64_t first_bits(int64_t count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

}  // namespace

double threshold_in(Dtype dtype, double threshold) {
  if (dtype == Dtype::kFloat64) return threshold;
  // Scores of 16 bits are compared as float32. The next float32 above sorts them alike.
  const auto narrow = static_cast<float>(threshold);
  const bool below = static_cast<double>(narrow) < threshold;
  return below ? std::nextafter(narrow, std::numeric_limits<float>::infinity()) : narrow;
}

int64_t predicate(Dtype dtype, const std::byte* scores, int64_t count, double threshold,
                  std::byte* bits, bool& nan) {
  ensure(index(dtype) <= index(Dtype::kBfloat16), "scores of this type cannot be compared");
  return loops().mask.predicate[index(dtype)](scores, count, threshold, bits, &nan);
}

int64_t count_bits(const std::byte* bits, int64_t count) {
  const int64_t whole = count / 64;
  const int64_t set = loops().mask.count(bits, whole);
  return count % 64 == 0 ? set : set + std::popcount(word_of(bits, whole) & first_bits(count % 64));
}

bool bit_at(const std::byte* bits, int64_t index) {
  return ((bits[index / 8] >> (index % 8)) & std::byte{1}) != std::byte{0};
}

void copy_bits(const std::byte* bits, int64_t first, int64_t count, std::byte* dst) {
  const auto shift = static_cast<int>(first % 64);
  for (int64_t at = 0; at < count; at += 64) {
    const int64_t left = count - at;
    const int64_t word = (first + at) / 64;
    uint64_t value = word_of(bits, word) >> shift;
    if (shift + left > 64 && shift > 0) value |= word_of(bits, word + 1) << (64 - shift);
    value &= first_bits(left);
    std::memcpy(dst + at / 8, &value, sizeof value);
  }
}

int64_t compact(size_t elem_bytes, const std::byte* src, const std::byte* bits, int64_t count,
                std::byte* dst) {
  return loops().mask.compact[size_index(elem_bytes)](src, bits, count, dst);
}

void expand(size_t elem_bytes, const std::byte* src, const std::byte* bits, const std::byte* fill,
            int64_t count, std::byte* dst) {
  loops().mask.expand[size_index(elem_bytes)](src, bits, fill, count, dst);
}

void clear_kept(size_t elem_bytes, const std::byte* bits, int64_t count, std::byte* dst) {
  for (int64_t at = 0; at < count; at += 64) {
    std::byte* const begin = dst + static_cast<size_t>(at) * elem_bytes;
    for (uint64_t word = word_of(bits, at / 64); word != 0; word &= word - 1)
      std::memset(begin + static_cast<size_t>(std::countr_zero(word)) * elem_bytes, 0, elem_bytes);
  }
}

void fill_run(size_t elem_bytes, const std::byte* fill, std::byte* dst, int64_t count) {
  const size_t total = elem_bytes * static_cast<size_t>(count);
  if (total == 0) return;
  const std::byte* const end = fill + elem_bytes;
  if (std::all_of(fill, end, [](std::byte each) { return each == std::byte{0}; })) {
    std::memset(dst, 0, total);
    return;
  }
  std::memcpy(dst, fill, elem_bytes);
  size_t done = elem_bytes;
  for (size_t part = 0; done < total; done += part) {
    part = std::min({done, total - done, kFillBytes});
    std::memcpy(dst + done, dst, part);
  }
}

void stream_run(const std::byte* src, std::byte* dst, int64_t num_bytes) {
  if (num_bytes < kStreamRunBytes) {
    if (num_bytes > 0) std::memcpy(dst, src, static_cast<size_t>(num_bytes));
    return;
  }
  Block block;
  block.cols = num_bytes;
  block.stream = true;
  loops().copy.rows(src, dst, block);
}

void stream_fill(size_t elem_bytes, const std::byte* fill, std::byte* dst, int64_t count) {
  const auto size = static_cast<int64_t>(elem_bytes);
  const int64_t bytes = count * size;
  if (bytes < kStreamRunBytes) return fill_run(elem_bytes, fill, dst, count);
  alignas(64) std::byte filled[kFillBytes];
  const int64_t once = std::min<int64_t>(bytes, kFillBytes);
  fill_run(elem_bytes, fill, filled, once / size);
  for (int64_t done = 0; done < bytes; done += once)
    stream_run(filled, dst + done, std::min(once, bytes - done));
}

void stream_fence() { loops().copy.fence(); }

void test_counts(const int32_t* counts, int64_t count, int32_t pattern, std::byte* bits) {
  loops().mask.test(counts, count, pattern, bits);
}

void add_plane(const std::byte* bits, int64_t count, int32_t value, int32_t* counts) {
  loops().mask.add_plane(bits, count, value, counts);
}

void start_sum(Dtype dtype, std::byte* accumulator, int32_t* counts, int64_t count) {
  loops().masked_sum.start[index(dtype)](accumulator, count);
  std::fill_n(counts, count, 0);
}

int64_t add_masked(Dtype dtype, bool is_compact, const std::byte* src, const std::byte* bits,
                   int64_t count, std::byte* accumulator, int32_t* counts) {
  const MaskedSumLoops& sum = loops().masked_sum;
  const auto add = (is_compact ? sum.add_compact : sum.add_dense)[index(dtype)];
  return add(src, bits, count, accumulator, counts);
}

void finish_sum(Dtype dtype, const std::byte* accumulator, const int32_t* counts, int divisor,
                const std::byte* fill, std::byte* dst, int64_t count) {
  loops().masked_sum.finish[index(dtype)](accumulator, counts, divisor, fill, dst, count);
}

void sum_dense(Dtype dtype, std::span<const std::byte* const> srcs,
               std::span<const std::byte* const> bits, int64_t count, int divisor,
               const std::byte* fill, std::byte* dst, std::byte* copy, int32_t* counts,
               std::byte* kept) {
  ensure(srcs.size() == bits.size(), "a source without a mask");
  loops().masked_sum.sum_dense[index(dtype)](srcs.data(), bits.data(),
                                             static_cast<int>(srcs.size()), count, divisor, fill,
                                             dst, copy, counts, kept);
}

void remember(Dtype dtype, const std::byte* src, std::byte* residual, int64_t count) {
  loops().masked_sum.remember[index(dtype)](src, residual, count);
}

}  // namespace hybridengine
