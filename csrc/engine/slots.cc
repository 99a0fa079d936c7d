#include "engine/slots.h"

namespace hybridengine {

int32_t Slots::add_pool(size_t num_slots, size_t slot_bytes) {
  const auto id = static_cast<int32_t>(pools_.size());
  Pool& pool = pools_.emplace_back();
  pool.num_slots = num_slots;
  const auto first = static_cast<int32_t>(slots_.size());
  for (size_t i = 0; i < num_slots; ++i) {
    slots_.push_back({id, num_bytes_});
    num_bytes_ += slot_pitch(slot_bytes);
    pool.free.push_back(first + static_cast<int32_t>(num_slots - 1 - i));
  }
  return id;
}

void Slots::reserve(Communicator& comm) {
  const RegionPtr region = comm.fabric().staging(num_bytes_, comm.options().between);
  region_ = region;
  if (region) staging_ = region->span();
}

int32_t Slots::take(int32_t pool) {
  const int32_t slot = pools_[pool].free.back();
  pools_[pool].free.pop_back();
  return slot;
}

void Slots::give_back(int32_t slot) { pools_[slots_[slot].pool].free.push_back(slot); }

std::byte* Slots::at(size_t offset_bytes) const {
  return staging_.data == nullptr ? nullptr : staging_.data + offset_bytes;
}

}  // namespace hybridengine
