// What the ranks of a run say to each other, and what becomes of it.
#include "base/error.h"
#include "engine/run.h"

namespace hybridengine {

Message Run::message(MessageKind kind, int32_t part) const {
  Message result;
  result.kind = kind;
  result.bucket = part_of(part).name;
  result.plan = routine_.options().plan;
  return result;
}

/// Grants what is put into its final places by its source.
void Run::grant_places() {
  for (const int32_t id : program_.incoming()) {
    Incoming& incoming = incoming_[id];
    const bool in_place = incoming.way == Way::kDirect || incoming.way == Way::kWritten;
    if (part_of(id).feeds < 0) routine_.in_place()[id] = in_place;
    if (!in_place) continue;
    Message granted = message(MessageKind::kGranted, id);
    if (incoming.way == Way::kDirect) {
      comm_.transport().offer(part_of(id).src, segment_);
      granted.place.region = segment_->id();
    } else {
      tell_addresses(part_of(id).src);
      granted.addresses = routine_.tables().digest();
    }
    granted.direct = true;
    incoming.granted = true;
    comm_.send(part_of(id).src, granted);
  }
}

void Run::set_addresses() {
  // Tensors that lie in a segment are found there, and need no addresses.
  const auto own = std::span<const TensorMemory>(tensors_);
  const bool targets = program_.reduces() || !segment_;
  routine_.tables().set_own(targets ? own : own.first(program_.num_sources()));
}

/// Says of every part that may be read that it may; the destination may still grant another way.
void Run::announce_ready() {
  for (const int32_t id : program_.outgoing())
    if (part_of(id).gate < 0) announce_ready(id);
}

void Run::announce_ready(int32_t id) {
  const Part& part = part_of(id);
  if (part.manner != Manner::kRead || routine_.in_place()[id]) return;
  tell_addresses(part.dst);
  Message ready = message(MessageKind::kReady, id);
  ready.addresses = routine_.tables().digest();
  if (routine_.options().verify) ready.digest = digest_of_source(part, nullptr);
  comm_.send(part.dst, ready);
}

void Run::tell_addresses(Rank peer) {
  const Blob* const table = routine_.tables().news_for(peer);
  if (table == nullptr) return;
  Message part;
  part.kind = MessageKind::kAddresses;
  part.plan = routine_.options().plan;
  part.part.total_bytes = table->size();
  for (; part.part.offset < table->size(); part.part.offset += part.text.size()) {
    part.text = table->substr(part.part.offset, kMaxTextBytes);
    comm_.send(peer, part);
  }
}

bool Run::handle_arrivals() {
  arrivals_.clear();
  comm_.drain(arrivals_);
  for (const Arrival& arrival : arrivals_) {
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
  if (id < 0 || (outgoing && !outgoing_open_[id])) return false;
  const Part& part = part_of(id);
  Incoming& incoming = incoming_[id];
  switch (message.kind) {
    case MessageKind::kReady:
      if (!routine_.tables().knows(peer, message.addresses)) return false;
      if (incoming.way != Way::kPull || incoming.granted) return true;
      incoming.granted = true;
      pulls_.emplace_back(id, message.digest);
      return true;
    case MessageKind::kGranted:
      if (by_address(message) && !routine_.tables().knows(peer, message.addresses)) return false;
      if (part.gate >= 0 && !folds_[part.gate].folded)
        folds_[part.gate].granted.emplace_back(id, message);
      else
        send_part(id, message);
      return true;
    case MessageKind::kLanded:
      if (!incoming.open || !incoming.granted || incoming.way == Way::kPull) return false;
      if (part.feeds >= 0)
        receive_contribution(id, message);
      else
        receive_part(id, message);
      return true;
    case MessageKind::kReleased:
      ++report_.read_buckets;
      note_sent(id);
      return true;
    default:
      return false;
  }
}

void Run::note_sent(int32_t id) {
  const Part& part = part_of(id);
  outgoing_open_[id] = false;
  ++sent_;
  ++report_.buckets_out;
  report_.sent_bytes += part.payload_bytes;
  pair_row(report_, part.dst).sent_bytes += part.payload_bytes;
}

void Run::note_received(int32_t id) {
  const Part& part = part_of(id);
  if (part.feeds < 0)
    for (const Copy& copy : part.copies)
      targets_[copy.dst.tensor - program_.num_sources()].missing_bytes -= copy.wire_bytes();
  const Way way = incoming_[id].way;
  incoming_[id].open = false;
  ++landed_;
  ++report_.buckets_in;
  if (way == Way::kDirect || way == Way::kWritten) ++report_.direct_buckets;
  if (way == Way::kPull) ++report_.pulled_buckets;
  report_.received_bytes += part.payload_bytes;
  pair_row(report_, part.src).received_bytes += part.payload_bytes;
}

}  // namespace hybridengine
