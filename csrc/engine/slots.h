// Slots: receive memory in places that are used again and again.
//
// A *pool* is a number of slots of one size; all pools lie in one region, the staging of this rank,
// one after the other.
//
// What it is not: aware of who gets a slot, or when. Called by Flow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace hybridengine {

/// From the start of one slot of at least `bytes` to the start of the next. Slots start at other
/// low address bits than the page-aligned tensors that they are copied from and to: equal ones make
/// loads and stores collide.
inline constexpr size_t slot_pitch(size_t bytes) {
  constexpr size_t kPage = 4096, kSkew = 64;
  return (bytes + kPage - 1) / kPage * kPage + kSkew;
}

class Slots {
 public:
  /// Before reserve(). Returns the number of the pool.
  int32_t add_pool(size_t num_slots, size_t slot_bytes);
  /// Throws UsageError where there is no memory for them. Without payload there is none.
  void reserve(Communicator& comm);

  bool any_free(int32_t pool) const { return !pools_[pool].free.empty(); }
  bool any_in_use(int32_t pool) const { return pools_[pool].free.size() < pools_[pool].num_slots; }
  /// One that is free, the one that was freed last; the caller's until give_back().
  int32_t take(int32_t pool);
  void give_back(int32_t slot);

  size_t offset_bytes(int32_t slot) const { return slots_[slot].offset_bytes; }
  /// Memory `offset_bytes` from the start of the region; null without payload.
  std::byte* at(size_t offset_bytes) const;
  /// The region that they lie in: kept by the transport, so that what ended holds no memory.
  RegionPtr region() const { return region_.lock(); }
  /// The region's bytes: as many as the slots have, or more, from earlier runs.
  size_t region_bytes() const { return staging_.bytes; }
  /// The slots' bytes, also without payload.
  size_t num_bytes() const { return num_bytes_; }

 private:
  struct Pool {
    size_t num_slots = 0;
    std::vector<int32_t> free;
  };
  struct Slot {
    int32_t pool = -1;
    size_t offset_bytes = 0;
  };

  std::vector<Pool> pools_;
  std::vector<Slot> slots_;
  std::weak_ptr<Region> region_;
  Span staging_;
  size_t num_bytes_ = 0;
};

}  // namespace hybridengine
