// Slots: how receive memory is cut into places that are used again and again.
#pragma once

#include <cstddef>

namespace hybridengine {

/// From the start of one slot of at least `bytes` to the start of the next. Slots start at other
/// low address bits than the page-aligned tensors that they are copied from and to: equal ones make
/// loads and stores collide.
inline constexpr size_t slot_pitch(size_t bytes) {
  constexpr size_t kPage = 4096, kSkew = 64;
  return (bytes + kPage - 1) / kPage * kPage + kSkew;
}

}  // namespace hybridengine
