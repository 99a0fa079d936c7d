// Lane: where a rank shows the others something small, faster than a message could carry it.
//
// A rank *posts* entries one after the other; every peer reads them where they lie. There are two
// places, taken in turn: a rank posts entry k + 2 only when all peers have posted entry k + 1, and
// so have read entry k. Part of the Board (transport.h); used by comm/.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hybridengine {

/// Of one entry.
inline constexpr size_t kLaneBytes = 64 << 10;

struct Lane {
  alignas(64) std::atomic<uint32_t> posted{0};  // entries so far; a futex
  std::atomic<uint32_t> asleep{0};              // its rank sleeps until a peer posts
  uint64_t num_bytes[2] = {0, 0};
  alignas(64) std::byte entries[2][kLaneBytes];
};

}  // namespace hybridengine
