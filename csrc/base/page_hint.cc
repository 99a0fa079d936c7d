#include "base/page_hint.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace hybridengine {
namespace {

/// Below this the system call costs more than it saves.
constexpr size_t kSmallestBytes = size_t{4} << 20;

}  // namespace

void prefer_huge_pages(void* data, size_t bytes) {
  if (bytes < kSmallestBytes) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE));
}

}  // namespace hybridengine
