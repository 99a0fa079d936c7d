#include "collective/chunks.h"

#include <algorithm>

namespace hybridengine {
namespace {

/// Cuts lie here, so that masks of single elements begin with a word.
constexpr int64_t kAlignElems = 64;

/// Fills the chunks of one owner, stretch by stretch.
class Filler {
 public:
  Filler(int64_t packet_bytes, int planes) : packet_bytes_(packet_bytes), planes_(planes) {}

  void add(int32_t tensor, const FlatShape& shape, int64_t begin, int64_t end,
           std::vector<Chunk>& chunks) {
    while (begin < end) {
      const int64_t fits = chunks.empty() ? 0 : elems_that_fit(shape);
      int64_t count = std::min(fits, end - begin);
      if (count < end - begin) count = count / kAlignElems * kAlignElems;
      if (count <= 0) {
        chunks.emplace_back();
        used_bytes_ = 0;
        continue;
      }
      const Stretch stretch{tensor, begin, begin + count};
      chunks.back().push_back(stretch);
      const int64_t words = (stretch.num_entries(shape.width) + 63) / 64;
      used_bytes_ += packed_bytes(words * 8 * planes_, count, shape.elem_bytes);
      begin += count;
    }
  }

 private:
  /// Counts `planes` bits for each element, and in every plane a word for the entries that a
  /// stretch only has an end of, and one to fill up.
  int64_t elems_that_fit(const FlatShape& shape) const {
    const int64_t room = packet_bytes_ - used_bytes_ - 16 - 16 * planes_;
    return room <= 0 ? 0 : room * 8 / (8 * shape.elem_bytes + planes_);
  }

  int64_t packet_bytes_;
  int planes_;
  int64_t used_bytes_ = 0;
};

}  // namespace

int64_t packed_bytes(int64_t mask_bytes, int64_t num_values, int64_t elem_bytes) {
  return 8 + mask_bytes + (num_values * elem_bytes + 7) / 8 * 8;
}

std::vector<std::vector<Chunk>> cut_chunks(std::span<const FlatShape> tensors, int32_t world,
                                           int64_t packet_bytes, int planes) {
  std::vector<std::vector<Chunk>> owners(world);
  std::vector<Filler> fillers(world, Filler(packet_bytes, planes));
  int64_t total_bytes = 0;
  for (const FlatShape& shape : tensors) total_bytes += shape.num_elems * shape.elem_bytes;
  int64_t before_bytes = 0;
  int32_t owner = 0;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const FlatShape& shape = tensors[tensor];
    for (int64_t begin = 0; begin < shape.num_elems;) {
      int64_t end = shape.num_elems;
      if (owner + 1 < world) {
        const int64_t share_end =
            total_bytes / world * (owner + 1) + total_bytes % world * (owner + 1) / world;
        const int64_t elems = (share_end - before_bytes) / shape.elem_bytes;
        end = std::clamp((elems + kAlignElems / 2) / kAlignElems * kAlignElems, begin, end);
      }
      fillers[owner].add(static_cast<int32_t>(tensor), shape, begin, end, owners[owner]);
      begin = end;
      if (begin < shape.num_elems) ++owner;
    }
    before_bytes += shape.num_elems * shape.elem_bytes;
  }
  return owners;
}

}  // namespace hybridengine
