#include "collective/exchange.h"

#include <algorithm>

#include "base/error.h"
#include "base/trace.h"
#include "engine/slots.h"

namespace hybridengine {

Exchange::Exchange(Communicator& comm, uint64_t plan, size_t slot_bytes, std::vector<int> num_slots)
    : comm_(comm),
      plan_(plan),
      slot_bytes_(slot_bytes),
      pitch_bytes_(slot_pitch(slot_bytes + kSlack)),
      num_slots_(std::move(num_slots)),
      incoming_(static_cast<size_t>(comm.world()) * num_slots_.size()),
      outgoing_(incoming_.size()) {}

void Exchange::expect(Rank peer, int stream, int64_t num_packets) {
  incoming_[lane(peer, stream)].expected = num_packets;
  open_packets_ += num_packets;
}

void Exchange::promise(Rank peer, int stream, int64_t num_packets) {
  outgoing_[lane(peer, stream)].promised = num_packets;
  open_packets_ += num_packets;
}

void Exchange::start() {
  const auto num_streams = static_cast<int>(num_slots_.size());
  size_t bytes = 0;
  for (Rank peer = 0; peer < comm_.world(); ++peer)
    for (int stream = 0; stream < num_streams; ++stream) {
      Incoming& from = incoming_[lane(peer, stream)];
      from.offset_bytes = bytes;
      bytes +=
          static_cast<size_t>(std::min<int64_t>(num_slots_[stream], from.expected)) * pitch_bytes_;
    }
  region_ = comm_.fabric().staging(bytes, comm_.options().between);
  if (region_) staging_ = region_->span();
  staging_bytes_ = static_cast<int64_t>(bytes);
  for (Rank peer = 0; peer < comm_.world(); ++peer)
    for (int stream = 0; stream < num_streams; ++stream)
      for (int slot = 0; slot < num_slots_[stream]; ++slot) grant(peer, stream);
}

Message Exchange::message(MessageKind kind, int64_t packet, int stream) const {
  Message result;
  result.kind = kind;
  result.bucket = static_cast<uint32_t>(packet);
  result.plan = plan_ + static_cast<uint64_t>(stream);
  return result;
}

/// The slot of the next packet, unless it has no further one.
void Exchange::grant(Rank peer, int stream) {
  Incoming& from = incoming_[lane(peer, stream)];
  if (from.granted == from.expected) return;
  Message granted = message(MessageKind::kGranted, from.granted, stream);
  granted.place = {
      region_ ? region_->id() : 0,
      from.offset_bytes + static_cast<size_t>(from.granted % num_slots_[stream]) * pitch_bytes_};
  ++from.granted;
  if (region_) comm_.link(peer).offer(region_);
  comm_.send(peer, granted);
}

void Exchange::poll() {
  arrivals_.clear();
  comm_.drain(arrivals_);
  for (const Arrival& arrival : arrivals_) {
    if (!take(arrival.message, arrival.peer))
      throw TransportError(
          "two ranks are in different collectives",
          str_cat("rank ", arrival.peer, " sent a message of kind ",
                  static_cast<int>(arrival.message.kind), ", packet ", arrival.message.bucket,
                  ", that rank ", comm_.rank(), " does not wait for"),
          "Every rank must make the same calls in the same order.");
    comm_.made_progress();
  }
}

/// False where the message is not one that this peer may send now.
bool Exchange::take(const Message& message, Rank peer) {
  const uint64_t stream = message.plan - plan_;
  if (stream >= num_slots_.size()) return false;
  const size_t at = lane(peer, static_cast<int>(stream));
  Incoming& from = incoming_[at];
  Outgoing& to = outgoing_[at];
  if (message.kind == MessageKind::kGranted) {
    const int64_t next = to.sent + static_cast<int64_t>(to.granted.size());
    if (next >= to.promised || message.bucket != static_cast<uint32_t>(next)) return false;
    to.granted.push_back(message.place);
    return true;
  }
  const int64_t next = from.released + static_cast<int64_t>(from.landed.size());
  if (message.kind != MessageKind::kLanded || next >= from.granted ||
      message.bucket != static_cast<uint32_t>(next) || message.num_bytes > slot_bytes_)
    return false;
  const size_t offset =
      from.offset_bytes + static_cast<size_t>(next % num_slots_[stream]) * pitch_bytes_;
  from.landed.push_back(
      {staging_.data == nullptr ? nullptr : staging_.data + offset, message.num_bytes});
  return true;
}

bool Exchange::may_send(Rank peer, int stream) const {
  return !outgoing_[lane(peer, stream)].granted.empty();
}

Span Exchange::next_slot(Rank peer, int stream) {
  if (!comm_.fabric().caps().payload) return {nullptr, slot_bytes_};
  const RegionRef place = outgoing_[lane(peer, stream)].granted.front();
  const Span region = comm_.link(peer).map(place.region);
  const size_t needed = slot_bytes_ + kSlack;
  if (needed > region.bytes || place.offset > region.bytes - needed)
    throw TransportError(
        "a peer grants memory beyond the end of what it offered",
        str_cat("rank ", peer, ", ", needed, " bytes at ", place.offset, " of ", region.bytes),
        "Do all ranks run the same version?");
  return {region.data + place.offset, slot_bytes_};
}

void Exchange::send(Rank peer, int stream, size_t bytes) {
  ensure(bytes <= slot_bytes_, "a packet is larger than its slot");
  Outgoing& to = outgoing_[lane(peer, stream)];
  Message landed = message(MessageKind::kLanded, to.sent, stream);
  landed.num_bytes = bytes;
  to.granted.pop_front();
  ++to.sent;
  --open_packets_;
  sent_bytes_ += static_cast<int64_t>(bytes);
  comm_.send(peer, landed);
}

const Span* Exchange::landed(Rank peer, int stream) const {
  const Incoming& from = incoming_[lane(peer, stream)];
  return from.landed.empty() ? nullptr : &from.landed.front();
}

void Exchange::release(Rank peer, int stream) {
  Incoming& from = incoming_[lane(peer, stream)];
  from.landed.pop_front();
  ++from.released;
  --open_packets_;
  grant(peer, stream);
}

void Exchange::wait(const std::string& doing) {
  std::vector<Rank> owing;
  const auto num_streams = static_cast<int>(num_slots_.size());
  for (Rank peer = 0; peer < comm_.world(); ++peer)
    for (int stream = 0; stream < num_streams; ++stream) {
      const Incoming& from = incoming_[lane(peer, stream)];
      const Outgoing& to = outgoing_[lane(peer, stream)];
      const bool owes = from.released + static_cast<int64_t>(from.landed.size()) < from.granted ||
                        (to.sent < to.promised && to.granted.empty());
      if (owes && (owing.empty() || owing.back() != peer)) owing.push_back(peer);
    }
  ensure(!owing.empty(), "an exchange waits although nothing is missing");
  const TraceSpan span(Subsystem::kCollective, "wait");
  comm_.wait(owing, doing);
}

}  // namespace hybridengine
