// Rounds: ranks that do equal work at one pace, each showing the others what it has made.
//
// Vocabulary (steps.h has the rest): in round r a rank contributes to chunk r of every other owner,
// combines what the others contributed to its own chunk r - 1, and takes the results of the others'
// chunks r - 2. What it makes, *packets*, goes into its own staging, past the cache; the others
// read it there after the exchange (comm/) that ends the round. There are two
// *slots* for each packet, used in turn, so one exchange in a round is enough: what is read in a
// round is not written again before the round after it.
//
// Nobody writes into another rank's memory, so a rank that fails may use its own for something else
// at once. With n ranks a rank has 2 n slots and maps n - 1 stagings; a round is one exchange, in
// which each looks at n - 1 lanes, and it reads n - 1 parts and n - 1 results. So it is for the
// ranks of a host: it needs Caps::maps. Blocks only in the exchange: deadlines, dead peers and
// Ctrl-C are the communicator's.
//
// What it is not: aware of what packets hold. Called by carry().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/span.h"
#include "collective/steps.h"
#include "comm/communicator.h"

namespace hybridengine {

/// Packets of this size are written and read at the rate of memory, on cores that share a cache as
/// on cores that do not; with larger ones less of the work of the ranks overlaps.
inline constexpr int64_t kFastPacketBytes = 256 << 10;

class Rounds {
 public:
  /// A packet has at most `slot_bytes`. `plan` is a digest of what the ranks agreed on: a peer that
  /// does something else is a TransportError. All of it is alike on all ranks.
  Rounds(Communicator& comm, uint64_t plan, size_t slot_bytes);

  /// `num_chunks` is by owner, and alike on all ranks. Throws UsageError where there is no memory
  /// for the slots, and as Communicator::exchange does.
  void run(std::span<const size_t> num_chunks, Steps& steps);

  static constexpr int64_t kSlotsPerRank = 2;  // times world: those of each rank

  /// The packets of this rank, as often as they are read.
  int64_t sent_bytes() const { return sent_bytes_; }
  int64_t staging_bytes() const { return static_cast<int64_t>(staging_.bytes); }

  /// Room behind each slot: vector code reads and writes past the end of a packet.
  static constexpr size_t kSlack = 128;

 private:
  void open();
  size_t show_staging(std::vector<Rank>& to_tell);
  std::byte* mapped_at(Rank peer, uint64_t region, size_t bytes) const;
  void wait_for_news(std::span<const Rank> peers);
  size_t slot_offset(size_t chunk, Rank slot) const;
  std::byte* own_slot(size_t chunk, Rank slot) const;
  Span packet_of(Rank peer, size_t chunk, Rank slot) const;
  void contribute(size_t chunk, std::span<const size_t> num_chunks, Steps& steps);
  void combine(size_t chunk, Steps& steps);
  void end_round(size_t round);
  void drain();

  Communicator& comm_;
  uint64_t plan_;
  size_t slot_bytes_, pitch_bytes_;
  RegionPtr region_;  // of the slots; null without payload
  Span staging_;
  std::vector<std::byte*> staging_of_;  // by rank, as mapped here
  /// Bytes of the packets that were made in this round by slot: what this rank contributes to each
  /// owner, and, in its own place, its result.
  std::vector<uint64_t> made_bytes_;
  std::vector<std::vector<uint64_t>> heard_bytes_;  // by rank: that of the round before
  std::vector<Span> parts_;
  int64_t sent_bytes_ = 0;
  std::vector<Arrival> arrivals_;
};

}  // namespace hybridengine
