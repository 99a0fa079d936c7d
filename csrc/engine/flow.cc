#include "engine/flow.h"

#include <algorithm>
#include <utility>

namespace hybridengine {

int32_t Flow::add_line(size_t num_slots) {
  lines_.emplace_back().max_slots = num_slots;
  return static_cast<int32_t>(lines_.size()) - 1;
}

int32_t Flow::add_gate(std::vector<int32_t> units, int32_t line, size_t pitch_bytes) {
  const auto id = static_cast<int32_t>(gates_.size());
  const size_t count = units.size();
  if (count == 0) {
    full_.push_back(id);
  } else {
    lines_[line].waiters.push_back({.gate = id});
    lines_[line].slot_bytes = std::max(lines_[line].slot_bytes, count * pitch_bytes);
  }
  for (const int32_t unit : units) make(unit).gate = id;
  gates_.push_back({std::move(units), pitch_bytes, count, -1, false, {}});
  return id;
}

Flow::Unit& Flow::make(int32_t unit) {
  if (static_cast<size_t>(unit) >= units_.size()) units_.resize(static_cast<size_t>(unit) + 1);
  return units_[unit];
}

void Flow::expect(int32_t id, const Name& name, Way way) {
  Unit& unit = make(id);
  unit.name = name;
  unit.way = way;
  unit.incoming = true;
  ++num_named_;
}

void Flow::promise(int32_t id, const Name& name, int32_t gate) {
  Unit& unit = make(id);
  unit.name = name;
  unit.gate = gate;
  ++num_named_;
}

void Flow::join(int32_t line, int32_t unit, size_t bytes) {
  lines_[line].waiters.push_back({.unit = unit});
  lines_[line].slot_bytes = std::max(lines_[line].slot_bytes, bytes);
}

void Flow::reserve() {
  for (Line& line : lines_)
    line.pool = slots_.add_pool(std::min(line.max_slots, line.waiters.size()), line.slot_bytes);
  slots_.reserve(comm_);
}

Message Flow::message(MessageKind kind, int32_t unit) const {
  Message result;
  result.kind = kind;
  result.bucket = units_[unit].name.number;
  result.plan = units_[unit].name.plan;
  return result;
}

bool Flow::may_grant(int32_t line) const {
  return lines_[line].next < lines_[line].waiters.size() && slots_.any_free(lines_[line].pool);
}

int32_t Flow::next_in(int32_t line) const { return lines_[line].waiters[lines_[line].next].unit; }

void Flow::grant_slot(int32_t line) {
  const Waiter waiter = lines_[line].waiters[lines_[line].next++];
  const int32_t slot = slots_.take(lines_[line].pool);
  const RegionPtr region = slots_.region();
  size_t offset = slots_.offset_bytes(slot);
  if (waiter.gate < 0) {
    units_[waiter.unit].slot = slot;
    units_[waiter.unit].grant.place.offset = offset;
    return grant(waiter.unit, region);
  }
  Gate& gate = gates_[waiter.gate];
  gate.slot = slot;
  for (const int32_t unit : gate.units) {
    units_[unit].grant.place.offset = offset;
    grant(unit, region);
    offset += gate.pitch_bytes;
  }
}

void Flow::grant_place(int32_t unit, const RegionPtr& segment, uint64_t addresses) {
  units_[unit].grant.direct = true;
  units_[unit].grant.addresses = addresses;
  grant(unit, segment);
}

void Flow::grant(int32_t id, const RegionPtr& region) {
  Unit& unit = units_[id];
  if (region) comm_.link(unit.name.peer).offer(region);
  unit.grant.place.region = region ? region->id() : 0;
  unit.open = true;
  Message granted = message(MessageKind::kGranted, id);
  granted.place = unit.grant.place;
  granted.direct = unit.grant.direct;
  granted.addresses = unit.grant.addresses;
  comm_.send(unit.name.peer, granted);
}

void Flow::say_ready(int32_t unit, uint64_t addresses, uint64_t digest) {
  Message ready = message(MessageKind::kReady, unit);
  ready.addresses = addresses;
  ready.digest = digest;
  comm_.send(units_[unit].name.peer, ready);
}

Message Flow::landed(int32_t unit, uint64_t digest, uint64_t num_bytes) const {
  Message landed = message(MessageKind::kLanded, unit);
  landed.digest = digest;
  landed.num_bytes = num_bytes;
  return landed;
}

void Flow::say_landed(int32_t unit, uint64_t digest, uint64_t num_bytes) {
  comm_.send(units_[unit].name.peer, landed(unit, digest, num_bytes));
  finish(unit);
}

void Flow::say_released(int32_t unit) {
  comm_.send(units_[unit].name.peer, message(MessageKind::kReleased, unit));
  comm_.made_progress();
  finish(unit);
}

void Flow::took(int32_t id) {
  Unit& unit = units_[id];
  if (unit.slot >= 0) slots_.give_back(unit.slot);
  if (unit.gate >= 0 && --gates_[unit.gate].missing == 0) full_.push_back(unit.gate);
  finish(id);
}

void Flow::finish(int32_t unit) {
  units_[unit].through = true;
  ++num_through_;
}

Flow::Heard Flow::take(int32_t id, const Message& message) {
  Unit& unit = units_[id];
  const bool incoming = message.kind == MessageKind::kReady || message.kind == MessageKind::kLanded;
  if (unit.incoming != incoming || unit.through) return Heard::kWrong;
  switch (message.kind) {
    case MessageKind::kReady:
      if (unit.way != Way::kRead || unit.open) return Heard::kNothing;
      unit.open = true;
      return Heard::kReady;
    case MessageKind::kLanded:
      if (!unit.open || unit.landed || unit.way == Way::kRead) return Heard::kWrong;
      unit.landed = true;
      return Heard::kLanded;
    case MessageKind::kGranted:
      if (unit.open) return Heard::kWrong;
      unit.open = true;
      unit.grant = {message.place, message.direct, message.addresses};
      if (may_leave(id)) return Heard::kGranted;
      gates_[unit.gate].held.push_back(id);
      return Heard::kNothing;
    case MessageKind::kReleased:
      finish(id);
      return Heard::kReleased;
    default:
      return Heard::kWrong;
  }
}

bool Flow::may_leave(int32_t id) const {
  const Unit& unit = units_[id];
  return unit.open && !unit.through && (unit.gate < 0 || gates_[unit.gate].open);
}

std::optional<int32_t> Flow::next_full_gate() {
  if (full_.empty()) return std::nullopt;
  const int32_t gate = full_.front();
  full_.pop_front();
  return gate;
}

std::vector<int32_t> Flow::open_gate(int32_t id) {
  Gate& gate = gates_[id];
  gate.open = true;
  ++num_opened_;
  if (gate.slot >= 0) slots_.give_back(gate.slot);
  comm_.made_progress();
  return std::exchange(gate.held, {});
}

bool Flow::waits_for(int32_t id) const {
  const Unit& unit = units_[id];
  if (unit.through) return false;
  if (!unit.incoming || unit.way == Way::kRead) return !unit.open;
  return unit.open && !unit.landed;
}

std::vector<Rank> Flow::peers_of(std::span<const int32_t> units) const {
  std::vector<Rank> peers;
  for (const int32_t unit : units)
    if (std::ranges::find(peers, units_[unit].name.peer) == peers.end())
      peers.push_back(units_[unit].name.peer);
  return peers;
}

}  // namespace hybridengine
