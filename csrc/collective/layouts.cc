#include "collective/layouts.h"

#include "base/error.h"

namespace hybridengine {
namespace {

class Builder {
 public:
  Builder(const SpecPtr& spec, std::vector<Rank> ranks) : spec_(spec), ranks_(std::move(ranks)) {
    for (const TensorInfo& info : spec->tensors()) names_.push_back(info.name);
  }

  /// A local tensor that is `box` of the logical one.
  void add(Rank rank, int32_t tensor, const Box& box) {
    LocalTensor local{rank, tensor, spec_->tensors()[tensor].dtype, {}};
    local.shape.ndim = box.ndim;
    local.shape.size = box.size;
    pieces_.push_back({tensor,
                       static_cast<int32_t>(locals_.size()),
                       rank,
                       box,
                       {0, local.shape.contiguous_strides()}});
    locals_.push_back(local);
  }

  LayoutPtr build(const char* text) {
    return std::make_shared<const Layout>(text, spec_, std::move(ranks_), std::move(names_),
                                          std::move(locals_), std::move(pieces_));
  }

 private:
  SpecPtr spec_;
  std::vector<Rank> ranks_;
  std::vector<std::string> names_;
  Table<LocalTensor> locals_;
  Table<Piece> pieces_;
};

}  // namespace

SpecPtr spec_of(const Request& request, bool flat) {
  std::vector<TensorInfo> tensors;
  for (const TensorMemory& tensor : request.logical()) {
    Shape shape = tensor.shape;
    if (flat) {
      shape = Shape();
      shape.ndim = 1;
      shape.size[0] = tensor.shape.num_elems();
    }
    tensors.push_back({std::to_string(tensors.size()), shape, tensor.dtype});
  }
  return std::make_shared<const Spec>(std::move(tensors),
                                      std::vector<std::pair<std::string, std::string>>{});
}

LayoutPtr whole_on(const SpecPtr& spec, std::vector<Rank> ranks) {
  Builder builder(spec, ranks);
  for (const Rank rank : ranks)
    for (int32_t tensor = 0; tensor < static_cast<int32_t>(spec->tensors().size()); ++tensor)
      builder.add(rank, tensor, Box(spec->tensors()[tensor].shape));
  return builder.build("whole");
}

LayoutPtr chunks_on(const SpecPtr& spec, int32_t world) {
  std::vector<Rank> ranks(world);
  for (Rank rank = 0; rank < world; ++rank) ranks[rank] = rank;
  Builder builder(spec, ranks);
  for (const Rank rank : ranks)
    for (int32_t tensor = 0; tensor < static_cast<int32_t>(spec->tensors().size()); ++tensor) {
      Box box(spec->tensors()[tensor].shape);
      box.size[0] /= world;
      box.start[0] = rank * box.size[0];
      builder.add(rank, tensor, box);
    }
  return builder.build("chunks");
}

}  // namespace hybridengine
