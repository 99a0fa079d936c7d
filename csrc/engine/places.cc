#include "engine/places.h"

#include "base/error.h"
#include "base/hash.h"

namespace hybridengine {
namespace {

int64_t num_bytes(const Shape& shape, Dtype dtype) {
  return shape.num_elems() * static_cast<int64_t>(dtype_bytes(dtype));
}

TensorMemory decode_memory(const LocalTensor& local, BlobReader& reader) {
  TensorMemory memory{
      reinterpret_cast<std::byte*>(reader.get<uint64_t>()), local.shape, {}, local.dtype};
  for (int dim = 0; dim < local.shape.ndim; ++dim) memory.strides[dim] = reader.get<int64_t>();
  return memory;
}

std::vector<TensorMemory> decode_table(const Layout& src, const Layout& dst, Rank peer,
                                       const Blob& blob) {
  std::vector<TensorMemory> tensors;
  try {
    BlobReader reader(blob);
    const auto count = reader.get<uint64_t>();
    for (const Layout* layout : {&src, &dst}) {
      if (layout == &dst && tensors.size() == count) break;
      const auto [begin, end] = layout->locals_of(peer);
      for (int32_t i = begin; i < end; ++i)
        tensors.push_back(decode_memory(layout->locals()[i], reader));
    }
    reader.finish();
  } catch (const UsageError& error) {
    throw TransportError("a peer sent addresses that do not fit its layout",
                         str_cat("rank ", peer, ", ", error.what()), "");
  }
  return tensors;
}

}  // namespace

std::vector<int64_t> packed_offsets(const Layout& layout, Rank rank) {
  const auto [begin, end] = layout.locals_of(rank);
  std::vector<int64_t> offsets{0};
  offsets.reserve(end - begin + 1);
  for (int32_t i = begin; i < end; ++i) {
    const LocalTensor& local = layout.locals()[i];
    const int64_t bytes = num_bytes(local.shape, local.dtype);
    offsets.push_back(offsets.back() +
                      (bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment);
  }
  return offsets;
}

RegionPtr segment_of(const Layout& layout, Rank rank, std::span<const TensorMemory> tensors) {
  const std::vector<int64_t> offsets = packed_offsets(layout, rank);
  const std::byte* start = nullptr;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].shape.num_elems() == 0) continue;
    if (start == nullptr) start = tensors[i].data - offsets[i];
    if (tensors[i].data - offsets[i] != start || !is_contiguous(tensors[i])) return nullptr;
  }
  if (start == nullptr) return nullptr;
  RegionPtr segment = Region::containing(start, static_cast<size_t>(offsets.back()));
  return segment && segment->span().data == start ? segment : nullptr;
}

void AddressTables::set_own(std::span<const TensorMemory> tensors) {
  BlobWriter writer;
  writer.put(static_cast<uint64_t>(tensors.size()));
  for (const TensorMemory& tensor : tensors) {
    writer.put(reinterpret_cast<uint64_t>(tensor.data));
    for (int dim = 0; dim < tensor.shape.ndim; ++dim) writer.put(tensor.strides[dim]);
  }
  own_ = std::move(writer).take();
  digest_ = digest_of(own_);
}

const Blob* AddressTables::news_for(Rank peer) {
  const auto [entry, fresh] = told_.emplace(peer, digest_);
  if (!fresh && entry->second == digest_) return nullptr;
  entry->second = digest_;
  return &own_;
}

const TensorMemory& AddressTables::of_peer(Rank peer, int32_t tensor) const {
  const std::vector<TensorMemory>& tensors = theirs_.at(peer).tensors;
  if (static_cast<size_t>(tensor) < tensors.size()) return tensors[tensor];
  throw TransportError("a peer grants a tensor of which it told no address",
                       str_cat("rank ", peer, ", tensor ", tensor, " of ", tensors.size()), "");
}

bool AddressTables::knows(Rank peer, uint64_t digest) const {
  const auto found = theirs_.find(peer);
  return found != theirs_.end() && found->second.digest == digest;
}

void AddressTables::add_part(const Layout& src, const Layout& dst, Rank peer, std::string_view part,
                             uint64_t offset, uint64_t total_bytes) {
  Theirs& theirs = theirs_[peer];
  if (offset == 0) theirs.arriving.clear();
  if (offset != theirs.arriving.size() || offset + part.size() > total_bytes)
    throw TransportError("a peer sent its addresses out of order", str_cat("rank ", peer), "");
  theirs.arriving.append(part);
  if (theirs.arriving.size() < total_bytes) return;
  theirs.digest = digest_of(theirs.arriving);
  theirs.tensors = decode_table(src, dst, peer, theirs.arriving);
  theirs.arriving = {};
}

}  // namespace hybridengine
