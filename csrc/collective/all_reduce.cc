#include "collective/all_reduce.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "device/mask.h"

namespace hybridengine {
namespace {

/// Elements that are combined at once, in the nearest cache, before they go to the two places where
/// they are needed.
constexpr int64_t kBlockElems = 2048;
constexpr int64_t kLargestElem = 8;

size_t bytes_in_packet(const Stretch& stretch, const FlatMemory& tensor) {
  const size_t bytes = static_cast<size_t>(stretch.num_elems()) * tensor.elem_bytes();
  return (bytes + 7) / 8 * 8;
}

}  // namespace

AllReduce::AllReduce(Communicator& comm, const std::vector<TensorMemory>& tensors, Op op,
                     int64_t bucket_bytes)
    : comm_(comm),
      op_(reduce_op(op)),
      divisor_(op == Op::kMean ? comm.world() : 1),
      packet_bytes_(static_cast<size_t>(
          std::max(kMinPacketBytes, std::min(bucket_bytes, kFastPacketBytes) / 8 * 8))) {
  std::vector<FlatShape> shapes;
  for (const TensorMemory& tensor : tensors) {
    tensors_.emplace_back(tensor);
    shapes.push_back(
        {tensors_.back().num_elems(), static_cast<int64_t>(tensors_.back().elem_bytes()), 1});
  }
  chunks_ = cut_chunks(shapes, comm.world(), static_cast<int64_t>(packet_bytes_), 0);
}

void AllReduce::run(uint64_t plan) {
  std::vector<size_t> num_chunks;
  for (const std::vector<Chunk>& each : chunks_) num_chunks.push_back(each.size());
  Rounds(comm_, plan, packet_bytes_).run(num_chunks, *this);
}

size_t AllReduce::contribute(Rank owner, size_t chunk, std::byte* dst) {
  size_t done = 0;
  for (const Stretch& stretch : chunks_[owner][chunk]) {
    const FlatMemory& tensor = tensors_[stretch.tensor];
    if (dst != nullptr) tensor.stream_from(stretch.begin, stretch.end, dst + done);
    done += bytes_in_packet(stretch, tensor);
  }
  return done;
}

size_t AllReduce::combine(size_t chunk, std::span<const Span> parts, std::byte* dst) {
  size_t done = 0;
  for (const Stretch& stretch : chunks_[comm_.rank()][chunk]) {
    if (dst != nullptr) combine_stretch(stretch, parts, done, dst + done);
    done += bytes_in_packet(stretch, tensors_[stretch.tensor]);
  }
  return done;
}

/// `skipped` bytes of every part belong to stretches before this one.
void AllReduce::combine_stretch(const Stretch& stretch, std::span<const Span> parts, size_t skipped,
                                std::byte* dst) {
  const FlatMemory& tensor = tensors_[stretch.tensor];
  const auto size = static_cast<int64_t>(tensor.elem_bytes());
  alignas(64) std::byte own[kBlockElems * kLargestElem], made[kBlockElems * kLargestElem];
  std::vector<const std::byte*> srcs(parts.size());
  for (int64_t lo = stretch.begin; lo < stretch.end; lo += kBlockElems) {
    const int64_t hi = std::min(stretch.end, lo + kBlockElems);
    const int64_t within = (lo - stretch.begin) * size;
    if (!tensor.contiguous()) tensor.read(lo, hi, own);
    for (Rank rank = 0; rank < comm_.world(); ++rank)
      srcs[rank] = parts[rank].data + skipped + within;
    srcs[comm_.rank()] = tensor.contiguous() ? tensor.at(lo) : own;
    fold(op_, tensor.dtype(), srcs, divisor_, made, hi - lo);
    tensor.stream_to(lo, hi, made);
    stream_run(made, dst + within, (hi - lo) * size);
  }
}

void AllReduce::take(Rank owner, size_t chunk, const Span& result) {
  size_t done = 0;
  for (const Stretch& stretch : chunks_[owner][chunk]) {
    const FlatMemory& tensor = tensors_[stretch.tensor];
    if (result.data != nullptr) tensor.stream_to(stretch.begin, stretch.end, result.data + done);
    done += bytes_in_packet(stretch, tensor);
  }
}

}  // namespace hybridengine
