// Chunks: how a list of tensors is cut among the ranks, and each rank's part into packets.
//
// Vocabulary: tensors are *flat*, one row of elements each, and lie one after the other. Every rank
// *owns* an equal share of the bytes. An *entry* is what a mask decides about: `width` elements (1,
// a row, a whole tensor). A *stretch* is a range of elements of one tensor; it touches the entries
// that it has elements of. A *chunk* is a list of stretches that fits into one packet.
//
// Plain values and pure functions: every rank computes the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hybridengine {

struct FlatShape {
  int64_t num_elems = 0;
  int64_t elem_bytes = 4;
  int64_t width = 1;  // elements per entry, at least 1; num_elems is a multiple
};

struct Stretch {
  int32_t tensor = 0;
  int64_t begin = 0, end = 0;  // elements; `begin` is a multiple of 64

  int64_t num_elems() const { return end - begin; }
  int64_t first_entry(int64_t width) const { return begin / width; }
  int64_t num_entries(int64_t width) const { return (end - 1) / width - begin / width + 1; }
  bool operator==(const Stretch& other) const = default;
};

using Chunk = std::vector<Stretch>;

/// Smallest packet: room for 64 elements of any type and what goes with them.
inline constexpr int64_t kMinPacketBytes = 1024;

/// The bytes of a stretch in a packet: a word of flags, `mask_bytes` (a multiple of 8), and
/// `num_values` elements, filled up to a multiple of 8.
int64_t packed_bytes(int64_t mask_bytes, int64_t num_values, int64_t elem_bytes);

/// The chunks of every owner, by rank. A packed chunk, with all its elements and `planes` bits per
/// entry, takes at most `packet_bytes`, which is at least kMinPacketBytes.
std::vector<std::vector<Chunk>> cut_chunks(std::span<const FlatShape> tensors, int32_t world,
                                           int64_t packet_bytes, int planes);

}  // namespace hybridengine
