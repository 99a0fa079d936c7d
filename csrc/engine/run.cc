#include "engine/run.h"

#include <algorithm>

#include "base/error.h"
#include "base/trace.h"
#include "engine/slots.h"
#include "engine/stopwatch.h"

namespace hybridengine {

Run::Run(Communicator& comm, Routine& routine, std::vector<TensorMemory> src,
         std::vector<TensorMemory> dst, const std::vector<int32_t>& aliased)
    : comm_(comm),
      routine_(routine),
      tensors_(tensors_of(routine, std::move(src), std::move(dst))),
      program_(routine.program_for(tensors_)),
      started_at_(std::chrono::steady_clock::now()) {
  if (program_.reduces() && routine_.streaming())
    throw UsageError("a partial layout cannot be streamed", program_.src_layout().text(),
                     "Reduce into tensors of your own: leave the stream, or the partial layout.");
  targets_.resize(program_.num_targets());
  for (const int32_t local : aliased) targets_.at(local).aliased = true;
  if (caps().maps && !routine_.streaming())
    segment_ = segment_of(program_.dst_layout(), comm_.rank(),
                          std::span(tensors_).subspan(program_.num_sources()));
  count_folds();
  count_parts();
}

void Run::count_parts() {
  incoming_.resize(program_.parts().size());
  outgoing_open_.assign(program_.parts().size(), false);
  for (const int32_t id : program_.outgoing()) outgoing_open_[id] = true;
  int64_t largest = 0;
  for (const SlotUser& user : slot_users_) {
    const auto others = static_cast<int64_t>(folds_[user.fold].missing);
    largest = std::max(largest, others * program_.folds()[user.fold].pitch_bytes);
  }
  for (const int32_t id : program_.incoming()) {
    const Part& part = part_of(id);
    Incoming& incoming = incoming_[id];
    incoming.open = true;
    if (part.feeds >= 0) continue;
    incoming.way = way_of(id);
    if (incoming.way == Way::kSlot) {
      slot_users_.push_back({.part = id});
      largest = std::max(largest, part.num_bytes);
    }
    for (const Copy& copy : part.copies)
      targets_[copy.dst.tensor - program_.num_sources()].missing_bytes += copy.wire_bytes();
  }
  make_slots(std::min<size_t>(kSlots, slot_users_.size()), largest);
}

Run::Way Run::way_of(int32_t id) const {
  const Part& part = part_of(id);
  // What is converted has no digest that both ends could take where it lies.
  if (segment_ && part.placed && (part.plain || !routine_.options().verify)) return Way::kDirect;
  if (part.manner == Manner::kPack || !reaches(part.src)) return Way::kSlot;
  if (part.manner == Manner::kWrite) return Way::kWritten;
  // The source does not say that it may be read: see routine.h.
  return routine_.in_place()[id] ? Way::kSlot : Way::kPull;
}

/// Whether this rank and `peer` reach each other's ordinary memory.
bool Run::reaches(Rank peer) const { return caps().pull && comm_.transport().readable(peer); }

/// Folds take slots before anything else does: see the top of run.h.
void Run::count_folds() {
  folds_.resize(program_.folds().size());
  for (size_t id = 0; id < folds_.size(); ++id) {
    for (const int32_t part : program_.folds()[id].parts)
      if (!part_of(part).local()) ++folds_[id].missing;
    if (folds_[id].missing == 0)
      foldable_.push_back(static_cast<int32_t>(id));
    else
      slot_users_.push_back({.fold = static_cast<int32_t>(id)});
  }
}

void Run::make_slots(size_t count, int64_t largest_bytes) {
  if (count == 0) return;
  const size_t pitch = slot_pitch(static_cast<size_t>(largest_bytes));
  const RegionPtr region = comm_.transport().staging(count * pitch, comm_.options().between);
  staging_ = region;
  const Span staging = region ? region->span() : Span{};
  report_.staging_bytes = static_cast<int64_t>(staging.bytes);
  for (size_t slot = 0; slot < count; ++slot) {
    slot_offset_.push_back(slot * pitch);
    free_slots_.push_back(static_cast<int32_t>(count - 1 - slot));
    slots_.push_back(staging.data == nullptr ? nullptr : staging.data + slot * pitch);
  }
}

void Run::provide(int32_t local, const TensorMemory& memory) {
  program_.check_target(local, memory);
  tensors_[program_.num_sources() + local] = memory;
}

void Run::start() {
  started_ = true;
  if (caps().pull && !routine_.streaming()) set_addresses();
  grant_places();
  if (caps().pull && !routine_.streaming()) announce_ready();
}

Event Run::advance() {
  if (!started_) start();
  for (;;) {
    if (auto event = hand_over()) return *event;
    if (auto event = grant_slots()) return *event;
    if (handle_arrivals() || fold_next() || pull_next() || run_local_copy()) continue;
    if (done()) {
      if (auto event = open_up_to(static_cast<int32_t>(targets_.size()) - 1)) return *event;
      if (next_local_ < targets_.size()) continue;
      if (auto event = hand_over()) return *event;
      finish();
      return {};
    }
    wait_for_peers();
  }
}

/// Streaming only: the next tensor, in layout order, that is complete.
std::optional<Event> Run::hand_over() {
  if (!routine_.streaming() || next_hand_over_ >= next_open_) return std::nullopt;
  const Target& target = targets_[next_hand_over_];
  if (target.missing_bytes > 0 || static_cast<int32_t>(next_local_) <= next_hand_over_)
    return std::nullopt;
  open_bytes_ -= program_.target_bytes(next_hand_over_);
  return Event{Event::Kind::kFinished, next_hand_over_++};
}

/// Streaming only: asks for the next tensor, in layout order, up to `local`.
std::optional<Event> Run::open_up_to(int32_t local) {
  if (!routine_.streaming() || next_open_ > local) return std::nullopt;
  open_bytes_ += program_.target_bytes(next_open_);
  return Event{Event::Kind::kNeed, next_open_++};
}

std::optional<Event> Run::grant_slots() {
  while (next_slot_user_ < slot_users_.size() && !free_slots_.empty()) {
    const SlotUser& user = slot_users_[next_slot_user_];
    const int32_t last = routine_.streaming() ? part_of(user.part).last_target : 0;
    // Too much is open: what has been granted, and what comes from this rank, goes first.
    const bool full = routine_.streaming() && open_bytes_ >= routine_.options().open_bytes;
    const bool busy =
        next_slot_user_ > slots_landed_ || static_cast<int32_t>(next_local_) < next_open_;
    if (full && busy && last >= next_open_) return std::nullopt;
    if (auto event = open_up_to(last)) return event;
    grant_slot(user);
    ++next_slot_user_;
  }
  return std::nullopt;
}

void Run::grant_slot(const SlotUser& user) {
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  const RegionPtr staging = staging_.lock();
  size_t within = 0;  // the slot
  const auto grant = [&](int32_t id) {
    incoming_[id].slot = slot;
    incoming_[id].base = slots_[slot] == nullptr ? nullptr : slots_[slot] + within;
    incoming_[id].granted = true;
    Message granted = message(MessageKind::kGranted, id);
    granted.place = {staging ? staging->id() : 0, slot_offset_[slot] + within};
    if (staging) comm_.transport().offer(part_of(id).src, staging);
    comm_.send(part_of(id).src, granted);
  };
  if (user.fold < 0) return grant(user.part);
  folds_[user.fold].slot = slot;
  const Fold& fold = program_.folds()[user.fold];
  for (const int32_t id : fold.parts) {
    if (part_of(id).local()) continue;
    grant(id);
    within += static_cast<size_t>(fold.pitch_bytes);
  }
}

/// True when it did something, be it only to find a tensor without local copies.
bool Run::run_local_copy() {
  const size_t before = next_local_;
  const auto limit = routine_.streaming() ? static_cast<size_t>(next_open_) : targets_.size();
  while (next_local_ < limit) {
    Target& target = targets_[next_local_];
    const std::vector<Copy>& copies = program_.local_copies()[next_local_];
    if (target.aliased || target.local_done == copies.size()) {
      ++next_local_;
      continue;
    }
    const TraceSpan span(Subsystem::kEngine, "local move");
    const Stopwatch watch(report_.local_seconds);
    copy_within(copies[target.local_done++]);
    return true;
  }
  return next_local_ != before;
}

bool Run::done() const {
  return landed_ == program_.incoming().size() && sent_ == program_.outgoing().size() &&
         folded_ == folds_.size();
}

void Run::wait_for_peers() {
  std::vector<Rank> owing;
  int32_t first = -1;
  const auto add = [&](int32_t id, Rank peer) {
    if (owing.empty()) first = id;
    if (std::ranges::find(owing, peer) == owing.end()) owing.push_back(peer);
  };
  for (const int32_t id : program_.incoming())
    if (incoming_[id].open && (incoming_[id].granted || incoming_[id].way == Way::kPull))
      add(id, part_of(id).src);
  const bool arrival = first >= 0;
  for (const int32_t id : program_.outgoing())
    if (outgoing_open_[id]) add(id, part_of(id).dst);
  const TraceSpan span(Subsystem::kEngine, "wait");
  const Stopwatch watch(report_.wait_seconds);
  comm_.wait(owing, str_cat(arrival ? "arrival" : "grant", " of ", program_.describe(first)));
}

void Run::finish() {
  std::ranges::sort(report_.pairs, {}, &PairBytes::peer);
  report_.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started_at_).count();
}

}  // namespace hybridengine
