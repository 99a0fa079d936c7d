#include "collective/rounds.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/trace.h"
#include "device/mask.h"
#include "engine/slots.h"

namespace hybridengine {
namespace {

/// What a rank says at the end of a round; the bytes of its packets follow.
struct Mark {
  uint64_t plan = 0;
  uint64_t round = 0;
};

/// What it says of its staging before the first. A byte for each rank follows: whether that rank
/// hears of the region only now.
struct Opening {
  uint64_t plan = 0;
  uint64_t region = 0;  // 0 without payload
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
      pitch_bytes_(slot_pitch(slot_bytes + kSlack)),
      staging_of_(comm.world(), nullptr),
      made_bytes_(comm.world(), 0),
      heard_bytes_(comm.world(), std::vector<uint64_t>(comm.world(), 0)),
      parts_(comm.world()) {}

/// Everybody finds everybody's staging.
void Rounds::open() {
  const size_t bytes = kSlotsPerRank * static_cast<size_t>(comm_.world()) * pitch_bytes_;
  region_ = comm_.fabric().staging(bytes, comm_.options().between);
  if (region_) staging_ = region_->span();
  std::vector<Rank> to_tell, with_news;
  const size_t shown_bytes = show_staging(to_tell);
  const auto entries = comm_.exchange(shown_bytes, "the begin of a collective");
  std::vector<uint64_t> regions(comm_.world(), 0);
  for (Rank peer = 0; peer < comm_.world(); ++peer) {
    if (peer == comm_.rank()) continue;
    const auto theirs = said_by<Opening>(entries[peer]);
    const size_t news_at = sizeof theirs + static_cast<size_t>(comm_.rank());
    if (theirs.plan != plan_ || entries[peer].size() <= news_at)
      throw_different(comm_.rank(), peer);
    regions[peer] = theirs.region;
    if (entries[peer][news_at] != std::byte{0}) with_news.push_back(peer);
  }
  for (const Rank peer : to_tell) {  // not earlier: nobody takes messages in an exchange
    Message message;
    message.kind = MessageKind::kGranted;
    message.plan = plan_;
    comm_.send(peer, message);
  }
  wait_for_news(with_news);
  for (Rank peer = 0; peer < comm_.world(); ++peer)
    if (peer != comm_.rank()) staging_of_[peer] = mapped_at(peer, regions[peer], bytes);
}

/// Offers the staging, and writes the opening of this rank. Fills `to_tell` with the peers that
/// hear of the region only now, and returns the bytes of the opening.
size_t Rounds::show_staging(std::vector<Rank>& to_tell) {
  const Opening mine{plan_, region_ ? region_->id() : 0};
  const std::span<std::byte> entry = comm_.lane_entry();
  std::memcpy(entry.data(), &mine, sizeof mine);
  for (Rank peer = 0; peer < comm_.world(); ++peer) {
    const bool news = region_ && peer != comm_.rank() && comm_.link(peer).offer(region_);
    entry[sizeof mine + static_cast<size_t>(peer)] = std::byte{news};
    if (news) to_tell.push_back(peer);
  }
  return sizeof mine + static_cast<size_t>(comm_.world());
}

std::byte* Rounds::mapped_at(Rank peer, uint64_t region, size_t bytes) const {
  const Span mapped = comm_.link(peer).map(region);
  if (mapped.bytes < bytes) throw_different(comm_.rank(), peer);
  return mapped.data;
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
