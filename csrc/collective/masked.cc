#include "collective/masked.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/trace.h"
#include "device/mask.h"
#include "schedule/schedule.h"

namespace hybridengine {
namespace {

// The streams of the exchange, and their slots: while one contribution is folded the next lands.
constexpr int kContributions = 0, kResults = 1;
constexpr int kContributionSlots = 2, kResultSlots = 1;

/// Smaller packets make ranks wait for each other more often, larger ones leave the caches; and the
/// slots of one kind stay within one bucket of the default size.
constexpr int64_t kFastPacketBytes = 4 << 20;

/// Scores are compared in blocks where they must be copied first.
constexpr int64_t kScoreBlock = 1024;

int64_t packet_bytes_for(int64_t bucket_bytes, int32_t world) {
  const int64_t peers = std::max(1, world - 1);
  const int64_t wish = bucket_bytes == 0 ? std::min(kFastPacketBytes, kDefaultBucketBytes / peers)
                                         : bucket_bytes / peers;
  return std::max(kMinPacketBytes, wish / 8 * 8);
}

/// Scores that cannot be compared where they lie. bool becomes 0.0 and 1.0 in float32.
void copy_scores(const FlatMemory& scores, int64_t begin, int64_t end, std::byte* dst) {
  if (scores.dtype() != Dtype::kBool) return scores.read(begin, end, dst);
  std::byte flags[kScoreBlock];
  scores.read(begin, end, flags);
  for (int64_t i = 0; i < end - begin; ++i) {
    const float score = flags[i] == std::byte{0} ? 0.0f : 1.0f;
    std::memcpy(dst + i * 4, &score, sizeof score);
  }
}

}  // namespace

int32_t MaskedReduction::read_scores() {
  const TraceSpan span(Subsystem::kCollective, "scores");
  kept_ = 0;
  for (size_t index = 0; index < tensors_.size(); ++index) {
    Tensor& tensor = tensors_[index];
    const int64_t entries = tensor.scores.num_elems();
    tensor.mask.assign(mask_words(entries), 0);
    auto* bits = reinterpret_cast<std::byte*>(tensor.mask.data());
    const bool as_they_lie = tensor.scores.contiguous() && tensor.scores.dtype() != Dtype::kBool;
    const Dtype dtype =
        tensor.scores.dtype() == Dtype::kBool ? Dtype::kFloat32 : tensor.scores.dtype();
    const double threshold = threshold_in(dtype, options_.threshold);
    const int64_t step = as_they_lie ? std::max<int64_t>(entries, 1) : kScoreBlock;
    bool nan = false;
    int64_t kept = 0;
    for (int64_t begin = 0; begin < entries; begin += step) {
      const int64_t end = std::min(entries, begin + step);
      alignas(64) std::byte block[kScoreBlock * 8];
      if (!as_they_lie) copy_scores(tensor.scores, begin, end, block);
      const std::byte* scores = as_they_lie ? tensor.scores.at(0) : block;
      kept += predicate(dtype, scores, end - begin, threshold, bits + begin / 8, nan);
    }
    if (tensor.values.num_elems() > 0) kept_ += kept;  // an entry without elements has no part
    if (nan) return static_cast<int32_t>(index);
  }
  return -1;
}

void MaskedReduction::plan_packets(Communicator& comm, Exchange& exchange) {
  for (Rank peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    const auto mine = static_cast<int64_t>(chunks_[rank_].size());
    const auto theirs = static_cast<int64_t>(chunks_[peer].size());
    exchange.promise(peer, kContributions, theirs);
    exchange.expect(peer, kContributions, mine);
    exchange.promise(peer, kResults, mine);
    exchange.expect(peer, kResults, theirs);
  }
  payload_ = comm.transport().caps().payload;
  contributions_sent_.assign(world_, 0);
  results_sent_.assign(world_, 0);
  results_taken_.assign(world_, 0);
  results_.clear();
  dense_bytes_ = 0;
}

void MaskedReduction::run(Communicator& comm, uint64_t plan) {
  rank_ = comm.rank();
  world_ = comm.world();
  planes_ = static_cast<int>(std::bit_width(static_cast<uint32_t>(world_)));
  const int64_t packet_bytes = packet_bytes_for(options_.bucket_bytes, world_);
  std::vector<FlatShape> shapes;
  for (const Tensor& each : tensors_)
    shapes.push_back(
        {each.values.num_elems(), static_cast<int64_t>(each.values.elem_bytes()), each.width});
  chunks_ = cut_chunks(shapes, world_, packet_bytes, options_.counts ? planes_ : 1);
  Exchange exchange(comm, plan, static_cast<size_t>(packet_bytes),
                    {kContributionSlots, kResultSlots});
  plan_packets(comm, exchange);
  exchange.start();
  for (;;) {
    exchange.poll();
    if (advance(exchange)) continue;
    if (exchange.done() && results_.size() == chunks_[rank_].size()) break;
    exchange.wait(doing());
  }
  wire_bytes_ = exchange.sent_bytes();
  staging_bytes_ = exchange.staging_bytes();
}

/// One packet of each kind and peer, where there is one. False where there was none.
bool MaskedReduction::advance(Exchange& exchange) {
  bool moved = false;
  for (Rank step = 1; step < world_; ++step) {  // ranks begin with different peers
    const Rank peer = (rank_ + step) % world_;
    if (exchange.may_send(peer, kContributions)) moved |= send_contribution(exchange, peer);
  }
  moved |= fold_next(exchange);
  for (Rank step = 1; step < world_; ++step) {
    const Rank peer = (rank_ + step) % world_;
    if (exchange.may_send(peer, kResults)) moved |= send_result(exchange, peer);
    moved |= take_result(exchange, peer);
  }
  return moved;
}

bool MaskedReduction::send_contribution(Exchange& exchange, Rank peer) {
  const TraceSpan span(Subsystem::kCollective, "pack");
  std::byte* const slot = exchange.next_slot(peer, kContributions).data;
  size_t bytes = 0;
  for (const Stretch& stretch : chunks_[peer][contributions_sent_[peer]])
    bytes += pack_contribution(stretch, slot == nullptr ? nullptr : slot + bytes);
  exchange.send(peer, kContributions, bytes);
  ++contributions_sent_[peer];
  return true;
}

bool MaskedReduction::fold_next(Exchange& exchange) {
  if (results_.size() == chunks_[rank_].size()) return false;
  std::vector<Span> packets(world_);
  for (Rank peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    const Span* packet = exchange.landed(peer, kContributions);
    if (packet == nullptr) return false;
    packets[peer] = *packet;
  }
  const TraceSpan span(Subsystem::kCollective, "fold");
  std::vector<size_t> read(world_, 0);
  std::vector<Result> results;
  for (const Stretch& stretch : chunks_[rank_][results_.size()]) {
    Contributions from(world_);
    for (Rank peer = 0; peer < world_; ++peer)
      if (peer != rank_ && payload_)
        read[peer] += read_contribution(stretch, packets[peer].data + read[peer], from[peer]);
    results.push_back(fold(stretch, from));
  }
  for (Rank peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    if (payload_ && read[peer] != packets[peer].bytes)
      throw TransportError(
          "a packet has another size than its mask says",
          str_cat("rank ", peer, ", ", packets[peer].bytes, " bytes, ", read[peer], " expected"),
          "Do all ranks run the same version?");
    exchange.release(peer, kContributions);
  }
  results_.push_back(std::move(results));
  return true;
}

bool MaskedReduction::send_result(Exchange& exchange, Rank peer) {
  const size_t index = results_sent_[peer];
  if (index == results_.size()) return false;
  const TraceSpan span(Subsystem::kCollective, "pack");
  std::byte* const slot = exchange.next_slot(peer, kResults).data;
  size_t bytes = 0;
  for (size_t i = 0; i < results_[index].size(); ++i)
    bytes += pack_result(chunks_[rank_][index][i], results_[index][i],
                         slot == nullptr ? nullptr : slot + bytes);
  exchange.send(peer, kResults, bytes);
  ++results_sent_[peer];
  return true;
}

bool MaskedReduction::take_result(Exchange& exchange, Rank peer) {
  const Span* packet = exchange.landed(peer, kResults);
  if (packet == nullptr) return false;
  const TraceSpan span(Subsystem::kCollective, "unpack");
  size_t read = 0;
  if (payload_)
    for (const Stretch& stretch : chunks_[peer][results_taken_[peer]])
      read += unpack_result(stretch, packet->data + read);
  ++results_taken_[peer];
  exchange.release(peer, kResults);
  return true;
}

std::string MaskedReduction::doing() const {
  return str_cat("arrival of packets of a masked all-reduce, ", results_.size(), "/",
                 chunks_[rank_].size(), " folded here");
}

}  // namespace hybridengine
