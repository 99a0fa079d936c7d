#include "collective/masked.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/trace.h"
#include "device/copy.h"
#include "device/mask.h"
#include "device/reduce.h"

namespace hybridengine {
namespace {

// The streams of the exchange, and their slots: while one contribution is folded the next lands.
constexpr int kContributions = 0, kResults = 1;
constexpr int kContributionSlots = 2, kResultSlots = 1;

/// Smaller packets make ranks wait for each other more often, larger ones leave the caches; and the
/// slots of one kind stay within one bucket of the default size.
constexpr int64_t kFastPacketBytes = 4 << 20, kDefaultBucketBytes = 32 << 20;

/// Scores are compared in blocks where they must be copied first.
constexpr int64_t kScoreBlock = 1024;

int64_t packet_bytes_for(int64_t bucket_bytes, int32_t world) {
  const int64_t peers = std::max(1, world - 1);
  const int64_t wish = bucket_bytes == 0 ? std::min(kFastPacketBytes, kDefaultBucketBytes / peers)
                                         : bucket_bytes / peers;
  return std::max(kMinPacketBytes, wish / 8 * 8);
}

uint64_t integer_fill(Dtype dtype, double fill) {
  const int bits = static_cast<int>(dtype_bytes(dtype)) * 8;
  const double largest = std::ldexp(1.0, dtype == Dtype::kUint8 ? 8 : bits - 1);
  const double smallest = dtype == Dtype::kUint8 ? 0.0 : -largest;
  if (!(fill >= smallest && fill < largest) || fill != std::floor(fill))
    throw UsageError(str_cat("fill does not fit ", dtype_name(dtype)), str_cat("fill is ", fill),
                     "Give an integer in its range.");
  return static_cast<uint64_t>(static_cast<int64_t>(fill));
}

/// `fill` as an element of `dtype`.
uint64_t fill_of(Dtype dtype, double fill) {
  if (!is_floating(dtype)) return integer_fill(dtype, fill);
  uint64_t element = 0;
  const StridedEnd src{reinterpret_cast<std::byte*>(&fill), {}, Dtype::kFloat64};
  const StridedEnd dst{reinterpret_cast<std::byte*>(&element), {}, dtype};
  copy_strided(src, dst, 0, {});
  return element;
}

void check_type(Dtype dtype, MaskedOp op) {
  accumulator_dtype(dtype);  // throws where it cannot be reduced
  if (op != MaskedOp::kSum && !is_floating(dtype))
    throw UsageError(str_cat("cannot take the mean of ", dtype_name(dtype)), "",
                     "Use op='sum' and divide by the counts, or convert to a floating type.");
}

void check_scores(Dtype dtype) {
  if (dtype == Dtype::kBool || (is_floating(dtype) && dtype_bytes(dtype) > 1)) return;
  throw UsageError(str_cat("scores are ", dtype_name(dtype)), "",
                   "Give float64, float32, float16, bfloat16 or bool.");
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

struct Extent {
  const std::byte* begin;
  const std::byte* end;
  bool written;
  const char* what;
  size_t tensor;
};

Extent extent_of(const TensorMemory& memory, bool written, const char* what, size_t tensor) {
  int64_t elems = 1;
  for (int dim = 0; dim < memory.shape.ndim; ++dim)
    elems += (memory.shape.size[dim] - 1) * memory.strides[dim];
  if (memory.shape.num_elems() == 0) elems = 0;
  const auto bytes = elems * static_cast<int64_t>(dtype_bytes(memory.dtype));
  return {memory.data, memory.data + bytes, written, what, tensor};
}

/// Throws UsageError where memory that is written overlaps with other memory.
void check_apart(const std::vector<MaskedTensor>& tensors) {
  std::vector<Extent> extents;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const MaskedTensor& each = tensors[i];
    const bool in_place =
        each.out.data == each.values.data && each.out.strides == each.values.strides;
    if (!in_place) extents.push_back(extent_of(each.values, false, "values", i));
    extents.push_back(extent_of(each.scores, false, "scores", i));
    extents.push_back(extent_of(each.out, true, in_place ? "values" : "out", i));
    if (each.residual) extents.push_back(extent_of(*each.residual, true, "residual", i));
  }
  std::erase_if(extents, [](const Extent& extent) { return extent.begin == extent.end; });
  std::ranges::sort(extents, {}, &Extent::begin);
  const Extent* reaches = nullptr;  // of those before, the one that ends last
  const Extent* writes = nullptr;   // the same of those that are written
  for (const Extent& extent : extents) {
    const Extent* other = extent.written ? reaches : writes;
    if (other != nullptr && other->end > extent.begin)
      throw UsageError("tensors share memory that is written",
                       str_cat(other->what, " of tensor ", other->tensor, " and ", extent.what,
                               " of tensor ", extent.tensor),
                       "Give each its own memory; only out may be values itself.");
    if (reaches == nullptr || extent.end > reaches->end) reaches = &extent;
    if (extent.written && (writes == nullptr || extent.end > writes->end)) writes = &extent;
  }
}

}  // namespace

MaskedReduction::MaskedReduction(std::vector<MaskedTensor> tensors, MaskedOptions options)
    : options_(options) {
  check_apart(tensors);
  for (const MaskedTensor& each : tensors) {
    check_type(each.values.dtype, options.op);
    check_scores(each.scores.dtype);
    Tensor& tensor = tensors_.emplace_back();
    tensor.values = FlatMemory(each.values);
    tensor.scores = FlatMemory(each.scores);
    tensor.out = FlatMemory(each.out);
    if (each.residual) tensor.residual = FlatMemory(*each.residual);
    tensor.counts = each.counts;
    tensor.width = each.width;
    tensor.fill = fill_of(each.values.dtype, options.fill);
    ensure(each.width == 1 || options.counts, "wide entries have counts");
  }
}

int32_t MaskedReduction::read_scores() {
  const TraceSpan span(Subsystem::kCollective, "scores");
  kept_ = 0;
  for (size_t index = 0; index < tensors_.size(); ++index) {
    Tensor& tensor = tensors_[index];
    const int64_t entries = tensor.scores.num_elems();
    tensor.mask.assign(mask_words(entries), 0);
    auto* bits = reinterpret_cast<std::byte*>(tensor.mask.data());
    const bool as_they_lie = tensor.scores.direct() && tensor.scores.dtype() != Dtype::kBool;
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
