#include "collective/all_reduce.h"

#include <algorithm>
#include <cstring>

#include "collective/carry.h"
#include "collective/rounds.h"
#include "device/mask.h"

namespace hybridengine {
namespace {

/// Elements of a tensor of any strides that are combined at once, in the nearest cache.
constexpr int64_t kFoldElems = 1024;
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
      packet_bytes_(packet_bytes_for(bucket_bytes, comm.world(), kFastPacketBytes)) {
  std::vector<FlatShape> shapes;
  for (const TensorMemory& tensor : tensors) {
    tensors_.emplace_back(tensor);
    shapes.push_back(
        {tensors_.back().num_elems(), static_cast<int64_t>(tensors_.back().elem_bytes()), 1});
  }
  chunks_ = cut_chunks(shapes, comm.world(), packet_bytes_, 0);
}

void AllReduce::run(uint64_t plan) {
  std::vector<size_t> num_chunks;
  for (const std::vector<Chunk>& each : chunks_) num_chunks.push_back(each.size());
  carry(comm_, plan, packet_bytes_, num_chunks, *this);
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
  const bool in_place = tensor.contiguous();
  alignas(64) std::byte own[kFoldElems * kLargestElem];
  std::vector<const std::byte*> srcs(parts.size());
  const int64_t step = in_place ? stretch.num_elems() : kFoldElems;
  for (int64_t lo = stretch.begin; lo < stretch.end; lo += step) {
    const int64_t hi = std::min(stretch.end, lo + step);
    const int64_t within = (lo - stretch.begin) * size;
    for (Rank rank = 0; rank < comm_.world(); ++rank)
      srcs[rank] = parts[rank].data + skipped + within;
    if (!in_place) tensor.read(lo, hi, own);
    std::byte* const mine = in_place ? tensor.at(lo) : own;
    srcs[comm_.rank()] = mine;
    fold_twice(op_, tensor.dtype(), srcs, divisor_, mine, dst + within, hi - lo);
    if (!in_place) tensor.write(lo, hi, mine);
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
