#include "collective/masked.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/trace.h"
#include "collective/carry.h"
#include "collective/rounds.h"
#include "device/mask.h"

namespace hybridengine {
namespace {

/// Where bytes count and not time: what goes with the values of a packet is next to nothing then.
constexpr int64_t kFewestBytesPacket = 4 << 20;

/// Scores are compared in blocks where they must be copied first.
constexpr int64_t kScoreBlock = 1024;

/// What a rank says before it begins.
struct Claim {
  uint64_t statement = 0;
  uint64_t wrong = 0;
  int64_t num_elems = 0, kept_elems = 0;
  double wire_density = 0;
};

std::span<const std::span<const std::byte>> exchange_claims(Communicator& comm, const Claim& mine) {
  std::memcpy(comm.lane_entry().data(), &mine, sizeof mine);
  return comm.exchange(sizeof mine, "agreeing on a masked all-reduce");
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
  std::ranges::fill(masks_, 0);
  for (size_t index = 0; index < tensors_.size(); ++index) {
    Tensor& tensor = tensors_[index];
    const int64_t entries = tensor.scores.num_elems();
    auto* bits = reinterpret_cast<std::byte*>(tensor.mask);
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

int64_t MaskedReduction::own_kept_elems() const {
  int64_t kept = 0;
  for (const Tensor& each : tensors_)
    kept += each.width * count_bits(each.bits(), each.values.num_elems() / each.width);
  return kept;
}

bool MaskedReduction::agree(Communicator& comm, uint64_t statement, double wire_density) {
  Claim mine{statement, 0, 0, own_kept_elems(), wire_density};
  for (const Tensor& each : tensors_) mine.num_elems += each.values.num_elems();
  const auto entries = exchange_claims(comm, mine);
  Claim first, all;
  for (size_t rank = 0; rank < entries.size(); ++rank) {
    Claim each;
    if (entries[rank].size() != sizeof each) return false;
    std::memcpy(&each, entries[rank].data(), sizeof each);
    if (rank == 0) first = each;
    if (each.wrong != 0 || each.statement != first.statement) return false;
    all.num_elems += each.num_elems;
    all.kept_elems += each.kept_elems;
  }
  const bool sparse = static_cast<double>(all.kept_elems) <=
                      first.wire_density * static_cast<double>(all.num_elems);
  route_ = options_.route.value_or(sparse ? Route::kWire : Route::kDense);
  return true;
}

void MaskedReduction::refuse(Communicator& comm) {
  Claim mine;
  mine.wrong = 1;
  exchange_claims(comm, mine);
}

void MaskedReduction::run(Communicator& comm, uint64_t plan) {
  rank_ = comm.rank();
  world_ = comm.world();
  planes_ = static_cast<int>(std::bit_width(static_cast<uint32_t>(world_)));
  payload_ = comm.fabric().caps().payload;
  dense_bytes_ = 0;
  const int64_t packet_bytes =
      packet_bytes_for(options_.bucket_bytes, world_,
                       options_.route == Route::kWire ? kFewestBytesPacket : kFastPacketBytes);
  std::vector<FlatShape> shapes;
  for (const Tensor& each : tensors_)
    shapes.push_back(
        {each.values.num_elems(), static_cast<int64_t>(each.values.elem_bytes()), each.width});
  chunks_ = cut_chunks(shapes, world_, packet_bytes, options_.counts ? planes_ : 1);
  std::vector<size_t> num_chunks;
  for (const std::vector<Chunk>& each : chunks_) num_chunks.push_back(each.size());
  const Carried carried = carry(comm, plan, packet_bytes, num_chunks, *this);
  wire_bytes_ = carried.sent_bytes;
  staging_bytes_ = carried.staging_bytes;
}

size_t MaskedReduction::contribute(Rank owner, size_t chunk, std::byte* dst) {
  size_t bytes = 0;
  for (const Stretch& stretch : chunks_[owner][chunk])
    bytes += pack_contribution(stretch, dst == nullptr ? nullptr : dst + bytes);
  return bytes;
}

size_t MaskedReduction::combine(size_t chunk, std::span<const Span> parts, std::byte* dst) {
  std::vector<size_t> read(world_, 0);
  size_t made = 0;
  for (const Stretch& stretch : chunks_[rank_][chunk]) {
    Contributions& from = contributions_;
    from.assign(world_, {});
    for (Rank peer = 0; peer < world_; ++peer)
      if (peer != rank_ && payload_)
        read[peer] += read_contribution(stretch, parts[peer].data + read[peer], from[peer]);
    std::byte* const to = dst == nullptr ? nullptr : dst + made;
    const Result result = fold(stretch, from, packed_values(stretch, to));
    made += pack_result(stretch, result, to);
  }
  for (Rank peer = 0; peer < world_; ++peer)
    if (peer != rank_ && payload_ && read[peer] != parts[peer].bytes)
      throw TransportError(
          "a packet has another size than its mask says",
          str_cat("rank ", peer, ", ", parts[peer].bytes, " bytes, ", read[peer], " expected"),
          "Do all ranks run the same version?");
  return made;
}

void MaskedReduction::take(Rank owner, size_t chunk, const Span& result) {
  if (result.data == nullptr) return;
  size_t read = 0;
  for (const Stretch& stretch : chunks_[owner][chunk])
    read += unpack_result(stretch, result.data + read);
}

}  // namespace hybridengine
