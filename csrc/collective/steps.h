// Steps: what a collective does with its chunks, whoever carries the packets between the ranks.
//
// Every rank *owns* a number of chunks. To each the others *contribute* a packet, the owner
// *combines* them, and the others *take* the packet that it made. Called by rounds and exchange.
#pragma once

#include <cstddef>
#include <span>

#include "base/rank.h"
#include "base/span.h"

namespace hybridengine {

/// Addresses are null without payload; packets have sizes all the same.
class Steps {
 public:
  virtual ~Steps() = default;
  /// Writes this rank's part of a chunk of `owner` to `dst`. Returns its bytes.
  virtual size_t contribute(Rank owner, size_t chunk, std::byte* dst) = 0;
  /// Makes the result of an own chunk from the `parts` of the ranks (the own one is empty), and
  /// writes what the others need of it to `dst`. Returns its bytes.
  virtual size_t combine(size_t chunk, std::span<const Span> parts, std::byte* dst) = 0;
  virtual void take(Rank owner, size_t chunk, const Span& result) = 0;
};

}  // namespace hybridengine
