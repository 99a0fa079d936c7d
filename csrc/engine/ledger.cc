#include "engine/ledger.h"

namespace hybridengine {

Ledger::Ledger(const Program& program, const RunOptions& options, std::span<const int32_t> aliased)
    : program_(program), options_(options), targets_(program.num_targets()) {
  for (const int32_t target : aliased) targets_.at(target).aliased = true;
  for (const int32_t id : program_.incoming()) {
    const Part& part = program_.parts()[id];
    for (const Copy& copy : part.copies)
      if (part.placed) target_of(copy).missing_bytes += copy.wire_bytes();
  }
  for (size_t target = 0; target < targets_.size(); ++target)
    for (const Copy& copy : program_.local_copies()[target])
      if (!targets_[target].aliased) targets_[target].missing_bytes += copy.wire_bytes();
  if (options_.tell_released) count_unread();
  skip_targets_without_copies();
}

void Ledger::count_unread() {
  unread_bytes_.assign(program_.num_sources(), 0);
  const auto add = [&](const std::vector<Copy>& copies) {
    for (const Copy& copy : copies)
      if (is_of_source(copy)) unread_bytes_[copy.src.tensor] += copy.wire_bytes();
  };
  for (const Part& part : program_.parts())
    if (part.src == program_.rank()) add(part.copies);
  // Those into views too: they are never made, so their source is never released.
  for (const std::vector<Copy>& copies : program_.local_copies()) add(copies);
  for (int32_t source = 0; source < program_.num_sources(); ++source)
    if (unread_bytes_[source] == 0) released_.push_back({Event::Kind::kReleased, source});
}

Ledger::Target& Ledger::target_of(const Copy& copy) {
  return targets_[copy.dst.tensor - program_.num_sources()];
}

/// What goes on from a result reads a destination tensor.
bool Ledger::is_of_source(const Copy& copy) const {
  return copy.src.tensor < program_.num_sources();
}

std::optional<Event> Ledger::next_event() {
  if (!released_.empty()) {
    const Event event = released_.front();
    released_.pop_front();
    return event;
  }
  if (!streaming() || next_hand_over_ >= next_open_ || targets_[next_hand_over_].missing_bytes > 0)
    return std::nullopt;
  open_bytes_ -= program_.target_bytes(next_hand_over_);
  return Event{Event::Kind::kFinished, next_hand_over_++};
}

void Ledger::landed(const Part& part) {
  for (const Copy& copy : part.copies) target_of(copy).missing_bytes -= copy.wire_bytes();
}

void Ledger::was_read(const Part& part) {
  for (const Copy& copy : part.copies) was_read(copy);
}

void Ledger::was_read(const Copy& copy) {
  if (unread_bytes_.empty() || !is_of_source(copy)) return;
  int64_t& unread = unread_bytes_[copy.src.tensor];
  unread -= copy.wire_bytes();
  if (unread == 0) released_.push_back({Event::Kind::kReleased, copy.src.tensor});
}

size_t Ledger::local_limit() const {
  return streaming() ? static_cast<size_t>(next_open_) : targets_.size();
}

void Ledger::skip_targets_without_copies() {
  while (next_local_ < local_limit() &&
         (targets_[next_local_].aliased ||
          next_copy_ == program_.local_copies()[next_local_].size())) {
    ++next_local_;
    next_copy_ = 0;
  }
}

const Copy& Ledger::next_local_copy() {
  const Copy& copy = program_.local_copies()[next_local_][next_copy_++];
  skip_targets_without_copies();
  return copy;
}

void Ledger::copied(const Copy& copy) {
  target_of(copy).missing_bytes -= copy.wire_bytes();
  was_read(copy);
}

std::optional<Event> Ledger::open_up_to(int32_t target) {
  if (!streaming() || next_open_ > target) return std::nullopt;
  open_bytes_ += program_.target_bytes(next_open_);
  const Event need{Event::Kind::kNeed, next_open_++};
  skip_targets_without_copies();
  return need;
}

bool Ledger::is_full_for(int32_t target) const {
  return streaming() && open_bytes_ >= options_.open_bytes && target >= next_open_;
}

}  // namespace hybridengine
