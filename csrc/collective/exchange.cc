#include "collective/exchange.h"

#include <utility>

#include "base/error.h"
#include "base/trace.h"
#include "engine/copier.h"

namespace hybridengine {

Exchange::Exchange(Communicator& comm, uint64_t plan, size_t slot_bytes, std::vector<int> num_slots)
    : comm_(comm),
      plan_(plan),
      slot_bytes_(slot_bytes),
      num_slots_(std::move(num_slots)),
      flow_(comm),
      copier_(comm),
      incoming_(static_cast<size_t>(comm.world()) * num_slots_.size()),
      outgoing_(incoming_.size()) {
  for (size_t line = 0; line < incoming_.size(); ++line)
    flow_.add_line(static_cast<size_t>(num_slots_[line % num_slots_.size()]));
}

Exchange::Packets Exchange::make_packets(int64_t count) {
  const Packets packets{num_units_, count, 0};
  num_units_ += static_cast<int32_t>(count);
  return packets;
}

Flow::Name Exchange::name_of(Rank peer, int stream, int64_t packet) const {
  return {peer, plan_ + static_cast<uint64_t>(stream), static_cast<uint32_t>(packet)};
}

void Exchange::expect(Rank peer, int stream, int64_t num_packets) {
  const int32_t line = stream_of(peer, stream);
  const Packets packets = incoming_[line].packets = make_packets(num_packets);
  for (int64_t packet = 0; packet < num_packets; ++packet) {
    flow_.expect(packets.unit(packet), name_of(peer, stream, packet), Flow::Way::kSlot);
    flow_.join(line, packets.unit(packet), slot_bytes_ + kSlack);
  }
}

void Exchange::promise(Rank peer, int stream, int64_t num_packets) {
  const Packets packets = outgoing_[stream_of(peer, stream)] = make_packets(num_packets);
  for (int64_t packet = 0; packet < num_packets; ++packet)
    flow_.promise(packets.unit(packet), name_of(peer, stream, packet));
}

void Exchange::start() {
  flow_.reserve();
  for (Rank peer = 0; peer < comm_.world(); ++peer)
    if (peer != comm_.rank() && copier_.is_put_to(peer)) {
      copier_.reserve_rooms(slot_bytes_ + kSlack);
      break;
    }
  for (size_t line = 0; line < incoming_.size(); ++line) grant(static_cast<int32_t>(line));
}

void Exchange::grant(int32_t line) {
  while (flow_.may_grant(line)) flow_.grant_slot(line);
}

void Exchange::poll() {
  arrivals_.clear();
  comm_.drain(arrivals_);
  for (const Arrival& arrival : arrivals_) {
    if (arrival.kind == Arrival::Kind::kDone)
      copier_.heard(arrival);
    else if (!take(arrival.message, arrival.peer))
      throw TransportError(
          "two ranks are in different collectives",
          str_cat("rank ", arrival.peer, " sent a message of kind ",
                  static_cast<int>(arrival.message.kind), ", packet ", arrival.message.bucket,
                  ", that rank ", comm_.rank(), " does not wait for"),
          "Every rank must make the same calls in the same order.");
    comm_.made_progress();
  }
  settle();
}

void Exchange::settle() {
  std::erase_if(leaving_, [&](const Leaving& each) {
    if (!copier_.done(each.ticket)) return false;
    flow_.has_left(each.unit);
    return true;
  });
}

/// False where the message is not one that this peer may send now.
bool Exchange::take(const Message& message, Rank peer) {
  const uint64_t stream = message.plan - plan_;
  if (stream >= num_slots_.size()) return false;
  const int32_t at = stream_of(peer, static_cast<int>(stream));
  if (message.kind == MessageKind::kLanded) return take_landed(incoming_[at], message);
  const Packets& packets = outgoing_[at];
  return message.kind == MessageKind::kGranted && message.bucket < packets.count &&
         flow_.take(packets.unit(message.bucket), message) == Flow::Heard::kGranted;
}

bool Exchange::take_landed(Incoming& from, const Message& message) {
  const int64_t next = from.packets.through + static_cast<int64_t>(from.landed.size());
  if (message.bucket != next || next >= from.packets.count || message.num_bytes > slot_bytes_ ||
      flow_.take(from.packets.unit(next), message) != Flow::Heard::kLanded)
    return false;
  from.landed.push_back({flow_.slot_of(from.packets.unit(next)), message.num_bytes});
  return true;
}

bool Exchange::may_send(Rank peer, int stream) const {
  const Packets& to = outgoing_[stream_of(peer, stream)];
  if (to.through == to.count || !flow_.may_leave(to.next())) return false;
  return !copier_.is_put_to(peer) || copier_.has_room();
}

Span Exchange::next_slot(Rank peer, int stream) {
  if (!comm_.fabric().caps().payload) return {nullptr, slot_bytes_};
  const Flow::Grant& grant = flow_.grant_of(outgoing_[stream_of(peer, stream)].next());
  if (copier_.is_put_to(peer)) return {room_ = copier_.take_room(), slot_bytes_};
  return {granted_memory(comm_, peer, grant.place, slot_bytes_ + kSlack), slot_bytes_};
}

void Exchange::send(Rank peer, int stream, size_t bytes) {
  ensure(bytes <= slot_bytes_, "a packet is larger than its slot");
  Packets& to = outgoing_[stream_of(peer, stream)];
  if (std::byte* const room = std::exchange(room_, nullptr)) {
    const RegionRef& place = flow_.grant_of(to.next()).place;
    const Message landed = flow_.landed(to.next(), 0, bytes);
    leaving_.push_back({copier_.put_packed(peer, room, place, bytes, landed), to.next()});
    settle();
  } else {
    flow_.say_landed(to.next(), 0, bytes);
  }
  ++to.through;
  sent_bytes_ += static_cast<int64_t>(bytes);
}

const Span* Exchange::landed(Rank peer, int stream) const {
  const Incoming& from = incoming_[stream_of(peer, stream)];
  return from.landed.empty() ? nullptr : &from.landed.front();
}

void Exchange::release(Rank peer, int stream) {
  const int32_t line = stream_of(peer, stream);
  Incoming& from = incoming_[line];
  from.landed.pop_front();
  flow_.took(from.packets.next());
  ++from.packets.through;
  grant(line);
}

void Exchange::wait(const std::string& doing) {
  std::vector<int32_t> waiting;
  const auto add = [&](const Packets& packets, int64_t next) {
    if (next < packets.count && flow_.waits_for(packets.unit(next)))
      waiting.push_back(packets.unit(next));
  };
  for (size_t at = 0; at < incoming_.size(); ++at) {
    const Incoming& from = incoming_[at];
    add(from.packets, from.packets.through + static_cast<int64_t>(from.landed.size()));
    add(outgoing_[at], outgoing_[at].through);
  }
  for (const Leaving& each : leaving_) waiting.push_back(each.unit);
  ensure(!waiting.empty(), "an exchange waits although nothing is missing");
  const TraceSpan span(Subsystem::kCollective, "wait");
  comm_.wait(flow_.peers_of(waiting), doing);
}

}  // namespace hybridengine
