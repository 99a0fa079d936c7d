#include "engine/run.h"

#include "base/error.h"
#include "base/trace.h"
#include "engine/stopwatch.h"

namespace hybridengine {

Event Run::advance() {
  if (!started_) start();
  for (;;) {
    if (auto event = ledger_.next_event()) return *event;
    if (auto event = grant_slots()) return *event;
    if (settle() || handle_arrivals() || fold_next() || read_next() || copy_locally()) continue;
    if (!pending_.empty() && !copier_.waits_for_links()) continue;  // it ends without a message
    if (flow_.done()) {
      if (auto event = ledger_.open_up_to(program_.num_targets() - 1)) return *event;
      if (auto event = ledger_.next_event()) return *event;
      finish();
      return {};
    }
    wait_for_peers();
  }
}

void Run::provide(int32_t local, const TensorMemory& memory) { memory_.provide(local, memory); }

/// Streaming: a slot is granted once the tensors that its part reaches are open.
std::optional<Event> Run::grant_slots() {
  while (flow_.may_grant(kLine)) {
    if (routine_.streaming()) {
      const int32_t last = part_of(flow_.next_in(kLine)).last_target;
      // Too much is open: what has been granted, and what comes from this rank, goes first.
      const bool busy = flow_.any_slot_in_use(kLine) || ledger_.any_local_copies();
      if (busy && ledger_.is_full_for(last)) return std::nullopt;
      if (auto event = ledger_.open_up_to(last)) return event;
    }
    flow_.grant_slot(kLine);
  }
  return std::nullopt;
}

/// Now, where the copy is done: nothing overtakes what was submitted before it.
template <class Then>
void Run::when_done(Copier::Ticket ticket, const Then& then, int32_t put) {
  if (pending_.empty() && copier_.done(ticket)) return then();
  pending_.push_back({ticket, then, put});
}

/// What follows from copies that have ended.
bool Run::settle() {
  bool settled = false;
  for (; !pending_.empty() && copier_.done(pending_.front().ticket); settled = true) {
    const std::function<void()> then = std::move(pending_.front().then);
    pending_.pop_front();
    then();
  }
  return settled;
}

bool Run::handle_arrivals() {
  arrivals_.clear();
  comm_.drain(arrivals_);
  for (const Arrival& arrival : arrivals_) {
    if (arrival.kind == Arrival::Kind::kDone) {
      copier_.heard(arrival);
      continue;
    }
    routine_.check_plan_of(arrival.peer, arrival.message.plan);
    if (!take(arrival.message, arrival.peer))
      throw TransportError(
          "a peer sent a message that fits no bucket",
          str_cat("rank ", arrival.peer, ", kind ", static_cast<int>(arrival.message.kind),
                  ", bucket ", arrival.message.bucket),
          "Do all ranks run the same version?");
    comm_.made_progress();
  }
  return !arrivals_.empty();
}

/// False where the message is not one that this peer may send now.
bool Run::take(const Message& message, Rank peer) {
  if (message.kind == MessageKind::kAddresses) {
    routine_.tables().add_part(program_.src_layout(), program_.dst_layout(), peer, message.text,
                               message.part.offset, message.part.total_bytes);
    return true;
  }
  const bool outgoing =
      message.kind == MessageKind::kGranted || message.kind == MessageKind::kReleased;
  const int32_t id = outgoing ? program_.find(comm_.rank(), peer, message.bucket)
                              : program_.find(peer, comm_.rank(), message.bucket);
  if (id < 0 || !knows_addresses(message, peer)) return false;
  switch (flow_.take(id, message)) {
    case Flow::Heard::kWrong:
      return false;
    case Flow::Heard::kNothing:
      return true;
    case Flow::Heard::kGranted:
      send_part(id);
      return true;
    case Flow::Heard::kReady:
      readable_.emplace_back(id, message.digest);
      return true;
    case Flow::Heard::kLanded:
      receive_part(id, message.digest);
      return true;
    case Flow::Heard::kReleased:
      ++report_.read_buckets;
      note_sent(id);
      return true;
  }
  return false;
}

/// Whether this rank has those that the message goes by, where it goes by any.
bool Run::knows_addresses(const Message& message, Rank peer) {
  const bool by_address =
      message.kind == MessageKind::kReady ||
      (message.kind == MessageKind::kGranted && message.direct && message.place.region == 0);
  return !by_address || routine_.tables().knows(peer, message.addresses);
}

void Run::send_part(int32_t id) {
  const Part& part = part_of(id);
  TraceSpan span(Subsystem::kEngine, "pack");
  span.arg("bucket", part.name).arg("peer", part.dst).arg("bytes", part.num_bytes);
  routine_.in_place()[id] = flow_.grant_of(id).direct;
  if (flow_.grant_of(id).by_address() || copier_.is_put_to(part.dst)) {
    if (!unput_.empty() || !put_part(id)) unput_.push_back(id);
    return;
  }
  std::byte* packed = nullptr;
  Copier::Ticket ticket;
  if (caps().payload) {
    const Stopwatch watch(report_.pack_seconds);
    ticket = write_part(id, packed);
  }
  when_done(ticket, [this, id, packed] {
    flow_.say_landed(id, digest_to_send(id, packed),
                     static_cast<uint64_t>(part_of(id).payload_bytes));
    note_sent(id);
  });
}

/// Where the peer's memory is mapped. `packed` becomes where it lies there in one piece.
Copier::Ticket Run::write_part(int32_t id, std::byte*& packed) {
  const Part& part = part_of(id);
  const Flow::Grant& grant = flow_.grant_of(id);
  if (!grant.direct) {
    packed = granted_memory(comm_, part.dst, grant.place, static_cast<size_t>(part.num_bytes));
    return copier_.submit(memory_.pack(part, packed));
  }
  std::byte* const segment =
      granted_memory(comm_, part.dst, grant.place, memory_.segment_bytes(part.dst),
                     "a peer grants memory that its tensors do not fit into");
  return copier_.submit(memory_.place(part, segment));
}

/// False where there is no room to pack it.
bool Run::put_part(int32_t id) {
  const Part& part = part_of(id);
  const Flow::Grant& grant = flow_.grant_of(id);
  std::byte* const room = grant.direct ? nullptr : copier_.take_room();
  if (!grant.direct && room == nullptr) return false;
  Copier::Ticket packed;
  {
    const Stopwatch watch(report_.pack_seconds);
    if (room != nullptr) packed = copier_.submit(memory_.pack(part, room));
  }
  when_done(packed, [this, id, room] { put_whole(id, room); });
  return true;
}

/// `room`: where it was packed, or null.
void Run::put_whole(int32_t id, std::byte* room) {
  const Part& part = part_of(id);
  const Flow::Grant& grant = flow_.grant_of(id);
  const uint64_t digest = digest_to_send(id, room);
  const Message landed = flow_.landed(id, digest, static_cast<uint64_t>(part.payload_bytes));
  const Stopwatch watch(report_.pack_seconds);
  Copier::Ticket ticket;
  if (room != nullptr)
    ticket = copier_.put_packed(part.dst, room, grant.place, static_cast<size_t>(part.num_bytes),
                                landed);
  else if (grant.by_address())
    ticket = copier_.put(part.dst, memory_.runs_to_peer(part), landed);
  else
    ticket = copier_.put(part.dst, memory_.runs_to_segment(part, grant.place.region), landed);
  const auto left = [this, id] {
    flow_.has_left(id);
    note_sent(id);
    while (!unput_.empty() && put_part(unput_.front())) unput_.pop_front();
  };
  when_done(ticket, left, id);
}

uint64_t Run::digest_to_send(int32_t id, const std::byte* packed) {
  if (!caps().payload || !routine_.options().verify) return 0;
  const Stopwatch watch(report_.pack_seconds);
  return memory_.digest_of_source(part_of(id), packed);
}

void Run::receive_part(int32_t id, uint64_t digest) {
  const Part& part = part_of(id);
  TraceSpan span(Subsystem::kEngine, "unpack");
  span.arg("bucket", part.name).arg("peer", part.src).arg("bytes", part.num_bytes);
  Copier::Ticket ticket;
  if (caps().payload && part.feeds < 0 && flow_.way_of(id) == Flow::Way::kSlot) {
    const Stopwatch watch(report_.unpack_seconds);
    ticket = copier_.submit(memory_.unpack(part, flow_.slot_of(id)));
  }
  when_done(ticket, [this, id, digest] {
    compare_digests(id, digest);
    note_received(id);
    flow_.took(id);
  });
}

bool Run::read_next() {
  if (readable_.empty()) return false;
  const auto [id, digest] = readable_.front();
  readable_.pop_front();
  const Part& part = part_of(id);
  TraceSpan span(Subsystem::kEngine, "pull");
  span.arg("peer", part.src).arg("bytes", part.num_bytes);
  Copier::Ticket ticket;
  {
    const Stopwatch watch(report_.unpack_seconds);
    ticket = copier_.get(part.src, memory_.runs_from_peer(part));
  }
  when_done(ticket, [this, id, digest] {
    compare_digests(id, digest);
    note_received(id);
    flow_.say_released(id);
  });
  return true;
}

void Run::compare_digests(int32_t id, uint64_t theirs) {
  if (!caps().payload || !routine_.options().verify) return;
  const Part& part = part_of(id);
  const Stopwatch watch(report_.unpack_seconds);
  const uint64_t found = memory_.digest_of_target(part, flow_.slot_of(id));
  if (theirs != found)
    throw TransportError(
        "a bucket arrived damaged",
        str_cat("bucket ", part.name / kNumManners, " from rank ", part.src, " to rank ", part.dst,
                ", ", part.num_bytes, " bytes, digests ", theirs, " and ", found),
        "Do not use the destination tensors; check the memory of both hosts.");
  ++report_.verified_buckets;
}

bool Run::fold_next() {
  const std::optional<int32_t> id = flow_.next_full_gate();
  if (!id) return false;
  const Fold& fold = program_.folds()[*id];
  TraceSpan span(Subsystem::kEngine, "fold");
  span.arg("fold", *id);
  const Stopwatch watch(report_.unpack_seconds);
  Copier::Ticket ticket;
  if (caps().payload)
    ticket =
        copier_.submit(memory_.fold(fold, [this](int32_t part) { return flow_.slot_of(part); }));
  for (const int32_t part : fold.kept) ticket = keep(part_of(part).copies);
  when_done(ticket, [this, id = *id] { open_gate(id); });
  return true;
}

/// A result is there: it goes on.
void Run::open_gate(int32_t id) {
  const std::vector<int32_t> granted = flow_.open_gate(id);
  const Fold& fold = program_.folds()[id];
  for (const int32_t part : fold.parts)
    if (part_of(part).local()) ledger_.was_read(part_of(part));
  if (caps().pull)
    for (const int32_t part : fold.outgoing) announce_ready(part);
  for (const int32_t part : granted) send_part(part);
}

bool Run::copy_locally() {
  if (!ledger_.any_local_copies()) return false;
  const TraceSpan span(Subsystem::kEngine, "local move");
  const Stopwatch watch(report_.local_seconds);
  const Copy& copy = ledger_.next_local_copy();
  when_done(keep(std::span(&copy, 1)), [this, &copy] { ledger_.copied(copy); });
  return true;
}

Copier::Ticket Run::keep(std::span<const Copy> copies) {
  for (const Copy& copy : copies) report_.local_bytes += copy.wire_bytes();
  return caps().payload ? copier_.submit(memory_.keep(copies)) : Copier::Ticket{};
}

void Run::wait_for_peers() {
  std::vector<int32_t> waiting;
  for (const int32_t id : program_.incoming())
    if (flow_.waits_for(id)) waiting.push_back(id);
  const bool arrival = !waiting.empty();
  for (const int32_t id : program_.outgoing())
    if (flow_.waits_for(id)) waiting.push_back(id);
  for (const Pending& each : pending_)
    if (each.part >= 0) waiting.push_back(each.part);
  ensure(!waiting.empty(), "a run waits although nothing is missing");
  const TraceSpan span(Subsystem::kEngine, "wait");
  const Stopwatch watch(report_.wait_seconds);
  comm_.wait(flow_.peers_of(waiting),
             str_cat(arrival ? "arrival" : "grant", " of ", program_.describe(waiting.front())));
}

void Run::note_sent(int32_t id) {
  const Part& part = part_of(id);
  ledger_.was_read(part);
  count_sent(report_, part.dst, part.payload_bytes);
}

void Run::note_received(int32_t id) {
  const Part& part = part_of(id);
  if (part.placed) ledger_.landed(part);
  count_received(report_, part.src, part.payload_bytes);
  if (flow_.way_of(id) == Flow::Way::kPlace) ++report_.direct_buckets;
  if (flow_.way_of(id) == Flow::Way::kRead) ++report_.pulled_buckets;
}

void Run::finish() {
  report_.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - started_at_).count();
}

}  // namespace hybridengine
