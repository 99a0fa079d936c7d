// Where the payload of a run lies, at this rank and at its peers.
//
// A *table of addresses* holds those of a rank's source tensors, and of its destination tensors
// unless they lie in a segment, so that a peer can read and write them where they lie. It is sent
// to a peer when it is not what that peer was told last. Destination tensors that lie in one
// published segment, packed in layout order, need none: their places follow from the layout. Kept
// from run to run, by engine/routine.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/blob.h"
#include "engine/memory.h"
#include "transport/region.h"

namespace hybridengine {

/// Destination tensors in a segment start at multiples of this.
inline constexpr int64_t kPackedAlignment = 64;

/// Byte offsets of a rank's local tensors when they are packed in layout order, and one past the
/// last.
std::vector<int64_t> packed_offsets(const Layout& layout, Rank rank);

/// The segment in which `tensors` lie packed and contiguous, null where they do not.
RegionPtr segment_of(const Layout& layout, Rank rank, std::span<const TensorMemory> tensors);

/// What a rank has told its peers, and what they have told it.
class AddressTables {
 public:
  /// Encodes `tensors`; digest() is then theirs.
  void set_own(std::span<const TensorMemory> tensors);
  uint64_t digest() const { return digest_; }
  /// The blob to send to `peer`, or null when it knows these addresses.
  const Blob* news_for(Rank peer);

  bool knows(Rank peer, uint64_t digest) const;
  /// Takes the next part of a peer's table, which has `total_bytes`. Throws TransportError where
  /// the parts do not fit together, or are no table of the peer's tensors in these layouts.
  void add_part(const Layout& src, const Layout& dst, Rank peer, std::string_view part,
                uint64_t offset, uint64_t total_bytes);
  /// Tensor `tensor` of a peer that knows() said yes of. Throws TransportError where its table has
  /// no such tensor.
  const TensorMemory& of_peer(Rank peer, int32_t tensor) const;

 private:
  struct Theirs {
    Blob arriving;
    uint64_t digest = 0;
    std::vector<TensorMemory> tensors;
  };

  Blob own_;
  uint64_t digest_ = 0;
  std::map<Rank, uint64_t> told_;
  std::map<Rank, Theirs> theirs_;
};

}  // namespace hybridengine
