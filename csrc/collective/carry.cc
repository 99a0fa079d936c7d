#include "collective/carry.h"

#include <algorithm>
#include <vector>

#include "base/trace.h"
#include "collective/chunks.h"
#include "collective/exchange.h"
#include "collective/rounds.h"
#include "schedule/schedule.h"

namespace hybridengine {
namespace {

// The streams of the exchange, and their slots: while one contribution is combined the next lands.
constexpr int kContributions = 0, kResults = 1;
constexpr int kContributionSlots = 2, kResultSlots = 1;

/// Steps by messages: each is made as soon as what it needs is there.
class Messages {
 public:
  Messages(Communicator& comm, uint64_t plan, size_t packet_bytes,
           std::span<const size_t> num_chunks, Steps& steps)
      : comm_(comm),
        num_chunks_(num_chunks),
        steps_(steps),
        exchange_(comm, plan, packet_bytes, {kContributionSlots, kResultSlots}),
        contributed_(comm.world(), 0),
        sent_(comm.world(), 0),
        taken_(comm.world(), 0) {
    if (comm.fabric().caps().payload) result_.resize(packet_bytes + Exchange::kSlack);
  }

  Carried run() {
    for (Rank peer = 0; peer < comm_.world(); ++peer) {
      if (peer == comm_.rank()) continue;
      const auto mine = static_cast<int64_t>(num_chunks_[comm_.rank()]);
      const auto theirs = static_cast<int64_t>(num_chunks_[peer]);
      exchange_.promise(peer, kContributions, theirs);
      exchange_.expect(peer, kContributions, mine);
      exchange_.promise(peer, kResults, mine);
      exchange_.expect(peer, kResults, theirs);
    }
    exchange_.start();
    for (;;) {
      exchange_.poll();
      if (advance()) continue;
      if (exchange_.done() && combined_ == num_chunks_[comm_.rank()]) break;
      exchange_.wait("arrival of packets of a collective");
    }
    return {exchange_.sent_bytes(), exchange_.staging_bytes()};
  }

 private:
  /// One packet of each kind and peer, where there is one. False where there was none.
  bool advance() {
    bool moved = false;
    for (Rank step = 1; step < comm_.world(); ++step)  // ranks begin with different peers
      moved |= contribute((comm_.rank() + step) % comm_.world());
    moved |= combine();
    for (Rank step = 1; step < comm_.world(); ++step) {
      const Rank peer = (comm_.rank() + step) % comm_.world();
      moved |= send_result(peer);
      moved |= take(peer);
    }
    return moved;
  }

  bool contribute(Rank owner) {
    if (!exchange_.may_send(owner, kContributions)) return false;
    const TraceSpan span(Subsystem::kCollective, "pack");
    std::byte* const slot = exchange_.next_slot(owner, kContributions).data;
    const size_t bytes = steps_.contribute(owner, contributed_[owner]++, slot);
    exchange_.send(owner, kContributions, bytes);
    return true;
  }

  /// There is room for one result, which has to go to all before the next is made.
  bool combine() {
    if (combined_ == num_chunks_[comm_.rank()]) return false;
    std::vector<Span> parts(comm_.world());
    for (Rank peer = 0; peer < comm_.world(); ++peer) {
      if (peer == comm_.rank()) continue;
      const Span* part = exchange_.landed(peer, kContributions);
      if (part == nullptr || sent_[peer] < combined_) return false;
      parts[peer] = *part;
    }
    const TraceSpan span(Subsystem::kCollective, "fold");
    std::byte* const dst = result_.empty() ? nullptr : result_.data();
    result_bytes_ = steps_.combine(combined_++, parts, dst);
    for (Rank peer = 0; peer < comm_.world(); ++peer)
      if (peer != comm_.rank()) exchange_.release(peer, kContributions);
    return true;
  }

  bool send_result(Rank peer) {
    if (sent_[peer] == combined_ || !exchange_.may_send(peer, kResults)) return false;
    std::byte* const slot = exchange_.next_slot(peer, kResults).data;
    if (slot != nullptr) std::copy_n(result_.data(), result_bytes_, slot);
    exchange_.send(peer, kResults, result_bytes_);
    ++sent_[peer];
    return true;
  }

  bool take(Rank owner) {
    const Span* result = exchange_.landed(owner, kResults);
    if (result == nullptr) return false;
    const TraceSpan span(Subsystem::kCollective, "unpack");
    steps_.take(owner, taken_[owner]++, *result);
    exchange_.release(owner, kResults);
    return true;
  }

  Communicator& comm_;
  std::span<const size_t> num_chunks_;
  Steps& steps_;
  Exchange exchange_;
  std::vector<std::byte> result_;  // the packet of the last own chunk
  size_t result_bytes_ = 0, combined_ = 0;
  std::vector<size_t> contributed_, sent_, taken_;  // chunks, by peer
};

}  // namespace

int64_t packet_bytes_for(int64_t bucket_bytes, int32_t world, int64_t wish) {
  const int64_t bucket = bucket_bytes == 0 ? kDefaultBucketBytes : bucket_bytes;
  const int64_t slots = Rounds::kSlotsPerRank * world;
  return std::clamp(3 * bucket / slots / 8 * 8, kMinPacketBytes, wish);
}

Carried carry(Communicator& comm, uint64_t plan, int64_t packet_bytes,
              std::span<const size_t> num_chunks, Steps& steps) {
  const auto bytes = static_cast<size_t>(packet_bytes);
  if (!comm.fabric().caps().maps) return Messages(comm, plan, bytes, num_chunks, steps).run();
  Rounds rounds(comm, plan, bytes);
  rounds.run(num_chunks, steps);
  return {rounds.sent_bytes(), rounds.staging_bytes()};
}

}  // namespace hybridengine
