// Runs of entries under a mask: what a masked reduction walks over where an entry is a row or a
// tensor. A mask here begins with the first entry that its stretch touches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/chunks.h"
#include "device/mask.h"

namespace hybridengine {

/// Elements that are copied at once where they cannot be used as they lie: the size of a block in
/// the nearest cache, and a multiple of 64.
inline constexpr int64_t kBlockElems = 1024;

/// A mask of as many entries in `words`, all of them 0.
inline std::byte* cleared(std::vector<uint64_t>& words, int64_t entries) {
  words.assign(static_cast<size_t>(mask_words(entries)), 0);
  return reinterpret_cast<std::byte*>(words.data());
}

/// `use(kept, begin, end)` for elements [lo, hi) of a stretch, in as few runs as there are.
template <class Use>
void each_run(const Stretch& stretch, int64_t width, const std::byte* bits, int64_t lo, int64_t hi,
              const Use& use) {
  const int64_t first = stretch.first_entry(width);
  while (lo < hi) {
    int64_t entry = lo / width;
    const bool kept = bit_at(bits, entry - first);
    int64_t end = (entry + 1) * width;
    while (end < hi && bit_at(bits, ++entry - first) == kept) end += width;
    end = std::min(end, hi);
    use(kept, lo, end);
    lo = end;
  }
}

/// How many elements of a stretch a mask keeps.
inline int64_t kept_elems(const Stretch& stretch, int64_t width, const std::byte* bits) {
  if (width == 1) return count_bits(bits, stretch.num_elems());
  int64_t kept = 0;
  each_run(stretch, width, bits, stretch.begin, stretch.end,
           [&](bool is_kept, int64_t begin, int64_t end) { kept += is_kept ? end - begin : 0; });
  return kept;
}

}  // namespace hybridengine
