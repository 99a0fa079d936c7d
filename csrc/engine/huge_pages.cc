#include "engine/huge_pages.h"

#include <sys/mman.h>

#include <cstdint>

namespace hybridengine {
namespace {

constexpr uintptr_t kHugePageBytes = 2 << 20;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack

}  // namespace

size_t collapse_to_huge_pages(Span memory) {
  const auto start = reinterpret_cast<uintptr_t>(memory.data);
  const uintptr_t begin = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uintptr_t end = (start + memory.bytes) / kHugePageBytes * kHugePageBytes;
  size_t collapsed = 0;
  // One stretch at a time: where memory is short the kernel gives up at the first that fails.
  for (uintptr_t at = begin; at < end; at += kHugePageBytes)
    if (::madvise(reinterpret_cast<void*>(at), kHugePageBytes, kCollapse) == 0)
      collapsed += kHugePageBytes;
    else if (collapsed == 0)
      return 0;
  return collapsed;
}

}  // namespace hybridengine
