// Run: one rank's part of one run of a Schedule, by its Program.
//
// A part goes one of these *ways*; the destination chooses:
//   slot    it grants a slot of its staging, in round order; the source packs into it and says that
//           the part has landed; the destination unpacks and grants the slot again. At most kSlots
//           slots exist, so memory is bounded while ranks work on different parts at once.
//   direct  its tensors lie in a segment that peers map: it grants the final places at once, and
//           the source writes there, converting on the way. One copy, made by the source.
//   written it grants its tensors by their addresses, and the source writes there. One copy.
//   pull    the source has said that the part is ready where it lies; the destination reads it into
//           its places and releases it. One copy, made by the destination.
// Contributions to what this rank combines (folds, see program.h) come by slot, so that what is
// folded is in cache; when all are there they are folded in rank order, and only then do the parts
// that carry the result start. Slots go to folds before they go to results of others: a rank whose
// slots all wait for results could never let the contributions in that others wait for.
//
// Nothing here blocks but Communicator::wait, and only when there is nothing to do, so ranks cannot
// wait in a ring.
//
// What it is not: a planner, or a judge of what the caller wants. Called by bindings and
// collectives.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/report.h"
#include "engine/routine.h"

namespace hybridengine {

/// Staging slots per rank: one lands while another is unpacked and a third is granted.
inline constexpr int kSlots = 3;

/// Why advance() came back.
struct Event {
  enum class Kind : uint8_t {
    kDone,      // all of this rank's part is through
    kNeed,      // provide() the memory of destination tensor `local`, then advance again
    kFinished,  // destination tensor `local`, provided before, is complete
  };
  Kind kind = Kind::kDone;
  int32_t local = -1;  // index among this rank's destination tensors, in layout order
};

class Run {
 public:
  /// `src` and `dst` are this rank's local tensors in layout order; when streaming, `dst` is empty.
  /// `aliased` destination tensors (by index) are views of the source already: nothing is copied
  /// into them. The memory, and the routine, must stay until the object is gone. Throws UsageError
  /// naming the tensor whose shape or type is not the layout's.
  Run(Communicator& comm, Routine& routine, std::vector<TensorMemory> src,
      std::vector<TensorMemory> dst, const std::vector<int32_t>& aliased);

  /// Goes on until there is an event for the caller. Throws as Communicator::wait does; the
  /// communicator is then dead.
  Event advance();
  void provide(int32_t local, const TensorMemory& memory);

  const Report& report() const { return report_; }

 private:
  /// Whether a grant names the final places by the granter's table of addresses.
  static bool by_address(const Message& granted) {
    return granted.direct && granted.place.region == 0;
  }

  enum class Way : uint8_t { kSlot, kDirect, kWritten, kPull };
  struct Incoming {
    Way way = Way::kSlot;
    bool open = false;     // not complete yet
    bool granted = false;  // or, when pulling, ready
    int32_t slot = -1;
    std::byte* base = nullptr;  // where it lands, once granted a slot
  };
  struct FoldState {
    size_t missing = 0;  // contributions of others that are not here
    int32_t slot = -1;
    /// Of parts that carry its result, that came before the result.
    std::vector<std::pair<int32_t, Message>> granted;
    bool folded = false;
  };
  struct SlotUser {  // one part, or all contributions to a fold
    int32_t part = -1;
    int32_t fold = -1;
  };
  struct Target {  // a destination tensor
    bool aliased = false;
    int64_t missing_bytes = 0;  // still to come in parts
    size_t local_done = 0;      // of its local copies
  };

  // run.cc: the order of things
  void count_folds();
  void count_parts();
  Way way_of(int32_t id) const;
  bool reaches(Rank peer) const;
  void make_slots(size_t count, int64_t largest_bytes);
  void start();
  std::optional<Event> grant_slots();
  void grant_slot(const SlotUser& user);
  std::optional<Event> hand_over();
  std::optional<Event> open_up_to(int32_t local);
  bool run_local_copy();
  void wait_for_peers();
  bool done() const;
  void finish();

  // messages.cc: what ranks say to each other
  void set_addresses();
  void grant_places();
  void announce_ready();
  void announce_ready(int32_t id);
  void tell_addresses(Rank peer);
  bool handle_arrivals();
  bool take(const Message& message, Rank peer);
  Message message(MessageKind kind, int32_t part) const;
  void note_sent(int32_t part);
  void note_received(int32_t part);

  // part_copy.cc: what touches payload
  void send_part(int32_t id, const Message& granted);
  void place_directly(const Part& part, Span segment);
  void pack(const Part& part, std::byte* window);
  void receive_part(int32_t id, const Message& landed);
  void unpack(const Part& part, std::byte* slot);
  uint64_t digest_of_source(const Part& part, const std::byte* window) const;
  void compare_digests(int32_t id, uint64_t theirs, const std::byte* slot);
  void copy_within(const Copy& copy);
  std::byte* slot_of_peer(const Part& part, const RegionRef& place);
  StridedEnd at(const End& end) const;

  // fold.cc: what comes together from several ranks
  StridedEnd contribution(int32_t part, const Copy& copy) const;
  void receive_contribution(int32_t id, const Message& landed);
  bool fold_next();
  void fold(int32_t id);
  void finish_fold(int32_t id);

  // reach.cc: the memory of peers
  bool pull_next();
  void pull(const Part& part);
  void write_to_peer(const Part& part);
  void find_runs(const Part& part, Rank peer, End Copy::* mine, End Copy::* theirs);
  template <class Act>
  void reach(const Act& act);
  StridedEnd at_peer(Rank peer, const End& end, const Box& box) const;

  const Part& part_of(int32_t id) const { return program_.parts()[id]; }
  const Caps& caps() const { return comm_.transport().caps(); }

  Communicator& comm_;
  Routine& routine_;
  std::vector<TensorMemory> tensors_;  // as program.h counts them
  const Program& program_;
  RegionPtr segment_;  // that holds all targets, or null
  bool started_ = false;

  std::vector<Incoming> incoming_;   // by part
  std::vector<bool> outgoing_open_;  // by part: not sent yet
  std::vector<Target> targets_;
  std::vector<FoldState> folds_;
  std::deque<int32_t> foldable_;  // complete, not folded yet
  size_t folded_ = 0;
  std::vector<SlotUser> slot_users_;  // in the order in which they get slots
  size_t next_slot_user_ = 0, slots_landed_ = 0;
  std::weak_ptr<Region> staging_;  // of the slots, kept by the transport; none without payload
  std::vector<std::byte*> slots_;  // base addresses
  std::vector<size_t> slot_offset_;
  std::vector<int32_t> free_slots_;
  std::deque<std::pair<int32_t, uint64_t>> pulls_;  // ready, not read yet: part, digest
  std::vector<RemoteRun> runs_;
  size_t landed_ = 0, sent_ = 0;  // parts

  int32_t next_open_ = 0, next_hand_over_ = 0;  // streaming
  int64_t open_bytes_ = 0;
  size_t next_local_ = 0;
  std::vector<Arrival> arrivals_;
  std::chrono::steady_clock::time_point started_at_;
  Report report_;
};

}  // namespace hybridengine
