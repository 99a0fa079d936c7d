// Flow: which units were granted, are ready, have landed and are through, and what this rank and
// its peers say to each other about that.
//
// Vocabulary: a *unit* is what travels as one, from this rank or to it. Its user numbers units; its
// peer knows it by a name. There are four events in the life of a unit, and one message for each:
//   granted   its destination names a place for it: a slot, or where it is to stay
//   ready     its source says that it may be read where it lies
//   landed    its source says that it is in the place that was granted
//   released  its destination says that it was read: the source may change
// A slot is granted again and again. Those that get one stand in a *line*, in the order in which
// they came to it; each line has a pool of slots. A *gate* is fed by units, which get one slot side
// by side, and holds others back: those may leave, or be read, once everything that feeds it is
// here and its user opens it.
//
// What it is not: aware of payload, tensors or plans. It believes its user, who tells it what has
// happened to the bytes once that is true. Nothing here blocks. Called by Run and by collective/,
// within a call of the communicator.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "engine/slots.h"

namespace hybridengine {

class Flow {
 public:
  /// What both ends call a unit.
  struct Name {
    Rank peer = 0;
    uint64_t plan = 0;    // a digest of what the ranks agreed on
    uint32_t number = 0;  // between the two ranks
  };
  /// How a unit comes here: into a slot, to where it is to stay, or read by this rank.
  enum class Way : uint8_t { kSlot, kPlace, kRead };
  struct Grant {
    RegionRef place;
    bool direct = false;     // where it is to stay, not a slot
    uint64_t addresses = 0;  // digest of the table that has the place, where no region does

    bool by_address() const { return direct && place.region == 0; }
  };
  /// What a message says of a unit: kWrong: it may not be said now; kNothing: nothing is to do.
  enum class Heard : uint8_t { kWrong, kNothing, kGranted, kReady, kLanded, kReleased };

  explicit Flow(Communicator& comm) : comm_(comm) {}

  // What there is. Before reserve().

  /// For at most `num_slots` at a time.
  int32_t add_line(size_t num_slots);
  /// Fed by `units`, which stand in `line` together, `pitch_bytes` each; without any it is full at
  /// once.
  int32_t add_gate(std::vector<int32_t> units, int32_t line, size_t pitch_bytes);
  void expect(int32_t unit, const Name& name, Way way);
  /// Held back by `gate`, where there is one.
  void promise(int32_t unit, const Name& name, int32_t gate = -1);
  /// A unit that comes by a slot of its own.
  void join(int32_t line, int32_t unit, size_t bytes);
  /// Throws UsageError where there is no memory for the slots.
  void reserve();

  // What this rank says.

  /// Whether somebody stands in the line, and a slot is free.
  bool may_grant(int32_t line) const;
  /// The unit that is next; -1 where it is those that feed a gate.
  int32_t next_in(int32_t line) const;
  void grant_slot(int32_t line);
  /// Where the unit is to stay: in `segment`, or, without one, by the table of addresses.
  void grant_place(int32_t unit, const RegionPtr& segment, uint64_t addresses);
  void say_ready(int32_t unit, uint64_t addresses, uint64_t digest);
  /// It is through then, as with the next two.
  void say_landed(int32_t unit, uint64_t digest, uint64_t num_bytes);
  /// The same word, to ride on a put; has_left() once the put is done.
  Message landed(int32_t unit, uint64_t digest, uint64_t num_bytes) const;
  void has_left(int32_t unit) { finish(unit); }
  void say_released(int32_t unit);
  /// Says nothing: what landed was taken. Its slot is free, unless it feeds a gate.
  void took(int32_t unit);

  // What it hears.

  Heard take(int32_t unit, const Message& message);
  /// Of a unit that leaves: whether it may, and where to.
  bool may_leave(int32_t unit) const;
  const Grant& grant_of(int32_t unit) const { return units_[unit].grant; }
  /// A gate that has become full: each once.
  std::optional<int32_t> next_full_gate();
  /// Frees its slot. Returns the units that were granted before, in that order.
  std::vector<int32_t> open_gate(int32_t gate);

  // How far it is.

  /// Of those that come by a slot: where; null without payload.
  std::byte* slot_of(int32_t unit) const { return slots_.at(units_[unit].grant.place.offset); }
  const Slots& slots() const { return slots_; }
  bool any_slot_in_use(int32_t line) const { return slots_.any_in_use(lines_[line].pool); }
  Way way_of(int32_t unit) const { return units_[unit].way; }
  /// Whether the next word about a unit is its peer's.
  bool waits_for(int32_t unit) const;
  /// Their peers, each once.
  std::vector<Rank> peers_of(std::span<const int32_t> units) const;
  bool done() const { return num_through_ == num_named_ && num_opened_ == gates_.size(); }

 private:
  struct Unit {
    Name name;
    Way way = Way::kSlot;
    bool incoming = false;
    bool open = false;    // granted, or ready
    bool landed = false;  // not taken yet
    bool through = false;
    int32_t gate = -1;  // that it feeds, or that holds it back
    int32_t slot = -1;  // of its own
    Grant grant;
  };
  struct Gate {
    std::vector<int32_t> units;  // that feed it
    size_t pitch_bytes = 0;
    size_t missing = 0;  // of them
    int32_t slot = -1;
    bool open = false;
    std::vector<int32_t> held;  // granted before
  };
  struct Waiter {  // in a line: a unit, or all that feed a gate
    int32_t unit = -1;
    int32_t gate = -1;
  };
  struct Line {
    size_t max_slots = 0, slot_bytes = 0;
    std::vector<Waiter> waiters;
    size_t next = 0;
    int32_t pool = -1;
  };

  Unit& make(int32_t unit);
  void grant(int32_t unit, const RegionPtr& region);
  void finish(int32_t unit);
  Message message(MessageKind kind, int32_t unit) const;

  Communicator& comm_;
  std::vector<Unit> units_;
  size_t num_named_ = 0, num_through_ = 0;
  std::vector<Line> lines_;
  Slots slots_;
  std::vector<Gate> gates_;
  std::deque<int32_t> full_;
  size_t num_opened_ = 0;
};

}  // namespace hybridengine
