// Run: one rank's part of one run of a Schedule, by its Program.
//
// A part goes one of these ways (Flow::Way); the destination chooses:
//   slot    it grants a slot of its staging, in round order; the source packs into it and says that
//           the part has landed; the destination unpacks and grants the slot again. At most kSlots
//           slots exist, so memory is bounded while ranks work on different parts at once.
//   place   its tensors lie in a segment, or it tells their addresses: it grants the final places
//   at
//           once, and the source writes there. One copy, made by the source.
//   read    the source has said that the part is ready where it lies; the destination reads it into
//           its places and releases it. One copy, made by the destination.
// Where the source does not map the destination's memory it puts a part: from its places, or packed
// into a room of its own for a slot.
//
// Contributions to what this rank combines (folds, see program.h) come by slot, so that what is
// folded is in cache; when all are there they are folded in rank order, and only then do the parts
// that carry the result start: a fold is a gate of the Flow, and has its number. Slots go to folds
// before they go to results of others: a rank whose slots all wait for results could never let the
// contributions in that others wait for.
//
// Who does what: Flow knows how far each part is and speaks with the peers, PartMemory where its
// bytes lie, Copier moves them, Ledger knows how far each tensor is. Here is the order of it. What
// follows from a copy is done when its ticket is (when_done), not when it was submitted.
//
// Nothing here blocks but Communicator::wait, and only when there is nothing to do, so ranks cannot
// wait in a ring.
//
// What it is not: a planner, or a judge of what the caller wants. Called by bindings and
// collectives.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "comm/report.h"
#include "engine/copier.h"
#include "engine/flow.h"
#include "engine/ledger.h"
#include "engine/part_memory.h"

namespace hybridengine {

/// Staging slots per rank: one lands while another is unpacked and a third is granted.
inline constexpr int kSlots = 3;

class Run {
 public:
  /// `src` and `dst` are this rank's local tensors in layout order; when streaming, `dst` is empty.
  /// `aliased` destination tensors (by index) are views of the source already: nothing is copied
  /// into them. The memory, and the routine, must stay until the object is gone; that of a source
  /// tensor until it is released. Throws UsageError naming the tensor whose shape or type is not
  /// the layout's.
  Run(Communicator& comm, Routine& routine, std::vector<TensorMemory> src,
      std::vector<TensorMemory> dst, const std::vector<int32_t>& aliased);

  /// Goes on until there is an event for the caller. Throws as Communicator::wait does; the
  /// communicator is then dead.
  Event advance();
  void provide(int32_t local, const TensorMemory& memory);

  const Report& report() const { return report_; }

 private:
  static constexpr int32_t kLine = 0;  // the one for slots
  struct Pending {
    Copier::Ticket ticket;
    std::function<void()> then;
    int32_t part = -1;  // that is put
  };

  // run_start.cc: which way each part goes, and what is said at once
  void line_up();
  void reserve_rooms();
  Flow::Way way_of(int32_t id) const;
  bool goes_into_segment(const Part& part) const;
  void start();
  void grant_places();
  void announce_ready(int32_t id);
  void tell_addresses(Rank peer);

  // run.cc: one thing at a time; true where there was something to do
  std::optional<Event> grant_slots();
  bool settle();
  bool handle_arrivals();
  bool fold_next();
  bool read_next();
  bool copy_locally();
  void wait_for_peers();
  void finish();

  bool take(const Message& message, Rank peer);
  bool knows_addresses(const Message& message, Rank peer);
  void send_part(int32_t id);
  Copier::Ticket write_part(int32_t id, std::byte*& packed);
  bool put_part(int32_t id);
  void put_whole(int32_t id, std::byte* room);
  uint64_t digest_to_send(int32_t id, const std::byte* packed);
  void receive_part(int32_t id, uint64_t digest);
  void compare_digests(int32_t id, uint64_t theirs);
  void open_gate(int32_t id);
  Copier::Ticket keep(std::span<const Copy> copies);
  template <class Then>
  void when_done(Copier::Ticket ticket, const Then& then, int32_t put = -1);
  void note_sent(int32_t id);
  void note_received(int32_t id);

  const Part& part_of(int32_t id) const { return program_.parts()[id]; }
  const Caps& caps() const { return comm_.fabric().caps(); }

  Communicator& comm_;
  Routine& routine_;
  PartMemory memory_;
  const Program& program_;
  RegionPtr segment_;  // that holds all targets, or null
  Copier copier_;
  Flow flow_;  // of the program's parts; its gates are the folds
  Ledger ledger_;
  bool started_ = false;
  std::deque<Pending> pending_;
  std::deque<int32_t> unput_;                          // parts that wait for a room
  std::deque<std::pair<int32_t, uint64_t>> readable_;  // parts that are ready, and their digests
  std::vector<Arrival> arrivals_;
  std::chrono::steady_clock::time_point started_at_;
  Report report_;
};

}  // namespace hybridengine
