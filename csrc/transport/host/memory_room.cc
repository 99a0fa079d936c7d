#include "transport/host/memory_room.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include "base/error.h"

namespace hybridengine {
namespace {

/// Memory plus swap that can still be had, or the largest number where nobody knows.
uint64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  uint64_t kib = 0, total_kib = 0;
  bool known = false;
  while (file >> key >> kib && std::getline(file, unit)) {
    if (key != "MemAvailable:" && key != "SwapFree:") continue;
    total_kib += kib;
    known |= key == "MemAvailable:";
  }
  return known ? total_kib << 10 : std::numeric_limits<uint64_t>::max();
}

}  // namespace

void require_room(const char* purpose, size_t bytes) {
  const uint64_t available = available_bytes();
  if (bytes <= available) return;
  throw UsageError(str_cat("no room for ", purpose),
                   str_cat(bytes, " bytes wanted, ", available, " bytes available on this machine"),
                   "Lower bucket_bytes, or give the machine more memory.");
}

size_t whole_pages(size_t bytes) {
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace hybridengine
