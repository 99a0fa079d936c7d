// Lane: where a rank shows the others something small, faster than a message could carry it.
//
// A rank *posts* entries one after the other; every peer reads them where they lie. There are two
// places, taken in turn: a rank posts entry k + 2 only when all peers have posted entry k + 1, and
// so have read entry k. Lies in the page of its rank (transport/endpoint.h), where zeros are a lane
// without entries. Used by lane.cc.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/endpoint.h"

namespace hybridengine {

/// Of one entry: 64 KiB of payload, and what tells of it.
inline constexpr size_t kLaneBytes = 72 << 10;

struct Lane {
  alignas(64) std::atomic<uint32_t> posted;  // entries so far; a futex
  std::atomic<uint32_t> asleep;              // its rank sleeps until a peer posts
  uint64_t num_bytes[2];
  alignas(64) std::byte entries[2][kLaneBytes];
};
static_assert(sizeof(Lane) <= kPageBytes);

}  // namespace hybridengine
