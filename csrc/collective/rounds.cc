#include "collective/rounds.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/trace.h"
#include "device/mask.h"

namespace hybridengine {
namespace {

/// Slots start at different low address bits than the page-aligned tensors that they are copied
/// from and to: equal ones make loads and stores collide.
constexpr size_t kSlotSkew = 64;

/// What a rank says at the end of a round; the bytes of its packets follow.
struct Mark {
  uint64_t plan = 0;
  uint64_t round = 0;
};

/// What it says of its staging before the first.
struct Opening {
  uint64_t plan = 0;
  uint64_t staging_bytes = 0;
  uint64_t is_new = 0;  // the peers have to hear of it
};

[[noreturn]] void throw_different(Rank rank, Rank peer) {
  throw TransportError("two ranks are in different collectives",
                       str_cat("rank ", rank, " and rank ", peer),
                       "Every rank must make the same calls in the same order.");
}

template <class Said>
Said said_by(std::span<const std::byte> entry) {
  Said said;
  if (entry.size() >= sizeof said) std::memcpy(&said, entry.data(), sizeof said);
  return said;
}

}  // namespace

Rounds::Rounds(Communicator& comm, uint64_t plan, size_t slot_bytes)
    : comm_(comm),
      plan_(plan),
      slot_bytes_(slot_bytes),
      pitch_bytes_((slot_bytes + kSlack + 4095) / 4096 * 4096 + kSlotSkew),
      staging_of_(comm.world(), nullptr),
      made_bytes_(comm.world(), 0),
      heard_bytes_(comm.world(), std::vector<uint64_t>(comm.world(), 0)),
      parts_(comm.world()) {}

/// Everybody finds everybody's staging.
void Rounds::open() {
  Transport& transport = comm_.transport();
  const size_t bytes = kSlotsPerRank * static_cast<size_t>(comm_.world()) * pitch_bytes_;
  const size_t before = transport.staging(0).bytes;
  staging_ = transport.staging(bytes);
  const Opening mine{plan_, staging_.bytes, staging_.bytes != before};
  std::memcpy(comm_.lane_entry().data(), &mine, sizeof mine);
  const auto entries = comm_.exchange(sizeof mine, "the begin of a collective");
  std::vector<Rank> with_news;
  for (Rank peer = 0; peer < comm_.world(); ++peer) {
    if (peer == comm_.rank()) continue;
    const auto theirs = said_by<Opening>(entries[peer]);
    if (theirs.plan != plan_) throw_different(comm_.rank(), peer);
    if (theirs.is_new != 0) with_news.push_back(peer);
    Message message;
    message.kind = MessageKind::kGranted;
    message.plan = plan_;
    if (mine.is_new != 0) comm_.send(peer, message);
  }
  wait_for_news(with_news);
  for (Rank peer = 0; peer < comm_.world(); ++peer)
    if (peer != comm_.rank()) staging_of_[peer] = transport.window(peer, bytes).data;
}

/// A message of a peer comes after what tells the transport of its staging.
void Rounds::wait_for_news(std::span<const Rank> peers) {
  std::vector<Rank> owing(peers.begin(), peers.end());
  drain();
  for (;;) {
    for (const Arrival& arrival : arrivals_)
      if (std::erase(owing, arrival.peer) == 0 || arrival.message.plan != plan_)
        throw_different(comm_.rank(), arrival.peer);
    if (owing.empty()) return;
    comm_.wait(owing, "the begin of a collective");
    drain();
  }
}

void Rounds::drain() {
  arrivals_.clear();
  comm_.drain(arrivals_);
}

size_t Rounds::slot_offset(size_t chunk, Rank slot) const {
  return (chunk % kSlotsPerRank * static_cast<size_t>(comm_.world()) + static_cast<size_t>(slot)) *
         pitch_bytes_;
}

std::byte* Rounds::own_slot(size_t chunk, Rank slot) const {
  return staging_.data + slot_offset(chunk, slot);
}

Span Rounds::packet_of(Rank peer, size_t chunk, Rank slot) const {
  return {staging_of_[peer] + slot_offset(chunk, slot), heard_bytes_[peer][slot]};
}

void Rounds::run(std::span<const size_t> num_chunks, Steps& steps) {
  const Rank rank = comm_.rank();
  open();
  const size_t rounds = std::ranges::max(num_chunks) + 2;
  for (size_t round = 0; round < rounds; ++round) {
    std::ranges::fill(made_bytes_, 0);
    contribute(round, num_chunks, steps);
    if (round >= 1 && round - 1 < num_chunks[rank]) combine(round - 1, steps);
    for (Rank step = 1; step < comm_.world() && round >= 2; ++step) {
      const Rank owner = (rank + step) % comm_.world();
      const TraceSpan span(Subsystem::kCollective, "unpack");
      if (round - 2 < num_chunks[owner])
        steps.take(owner, round - 2, packet_of(owner, round - 2, owner));
    }
    end_round(round);
  }
}

void Rounds::contribute(size_t chunk, std::span<const size_t> num_chunks, Steps& steps) {
  for (Rank step = 1; step < comm_.world(); ++step) {  // ranks begin with different owners
    const Rank owner = (comm_.rank() + step) % comm_.world();
    if (chunk >= num_chunks[owner]) continue;
    const TraceSpan span(Subsystem::kCollective, "pack");
    made_bytes_[owner] = steps.contribute(owner, chunk, own_slot(chunk, owner));
    sent_bytes_ += static_cast<int64_t>(made_bytes_[owner]);
  }
}

void Rounds::combine(size_t chunk, Steps& steps) {
  const TraceSpan span(Subsystem::kCollective, "fold");
  const Rank rank = comm_.rank();
  for (Rank peer = 0; peer < comm_.world(); ++peer)
    parts_[peer] = peer == rank ? Span{} : packet_of(peer, chunk, rank);
  made_bytes_[rank] = steps.combine(chunk, parts_, own_slot(chunk, rank));
  sent_bytes_ += static_cast<int64_t>(made_bytes_[rank]) * (comm_.world() - 1);
}

void Rounds::end_round(size_t round) {
  const size_t told = made_bytes_.size() * sizeof(uint64_t);
  for (const uint64_t bytes : made_bytes_)
    ensure(bytes <= slot_bytes_, "a packet is larger than its slot");
  stream_fence();
  const Mark mine{plan_, round};
  const std::span<std::byte> entry = comm_.lane_entry();
  std::memcpy(entry.data(), &mine, sizeof mine);
  std::memcpy(entry.data() + sizeof mine, made_bytes_.data(), told);
  comm_.made_progress();
  const TraceSpan span(Subsystem::kCollective, "wait");
  const auto entries = comm_.exchange(sizeof mine + told, "the end of a round of a collective");
  for (Rank peer = 0; peer < comm_.world(); ++peer) {
    const auto theirs = said_by<Mark>(entries[peer]);
    if (theirs.plan != plan_ || theirs.round != round) throw_different(comm_.rank(), peer);
    std::memcpy(heard_bytes_[peer].data(), entries[peer].data() + sizeof theirs, told);
    for (const uint64_t bytes : heard_bytes_[peer])
      if (bytes > slot_bytes_) throw_different(comm_.rank(), peer);
  }
}

}  // namespace hybridengine
