// Masks as the loops read them: words of 64 elements.
//
// Most words of a sparse or dense mask are all zeros or all ones, and those are skipped or handled
// as plain runs. What is between goes through the set's own compress and expand where it has them,
// and otherwise from one set bit to the next.
#pragma once

#include "device/loops/parts.h"

namespace hybridengine::HE_ISA {

static constexpr int64_t kWordElems = 64;
static constexpr uint64_t kAllElems = ~uint64_t{0};

/// The mask of elements [at, at + 64).
static inline uint64_t word_at(const std::byte* bits, int64_t at) {
  return load<uint64_t>(bits + at / 8);
}

/// From one set bit of a word to the next: `use(element of the word, how many came before)`.
/// Returns how many there are.
template <class Use>
static inline int64_t each_bit(uint64_t word, const Use& use) {
  int64_t seen = 0;
  for (; word != 0; word &= word - 1) use(int64_t{__builtin_ctzll(word)}, seen++);
  return seen;
}

}  // namespace hybridengine::HE_ISA
