#include "layout/owners.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"

namespace hybridengine {
namespace {

struct OwnedBox {
  Rank rank = 0;
  int32_t tensor = 0;
  Box box;
};

/// Leaves of each box that meets an earlier one what the earlier ones do not have, and gives all
/// that meet another to their first holder. Holdings are in the order of first holders.
std::vector<Holding> disjoint(const std::vector<Holding>& held) {
  std::vector<Holding> result;
  for (size_t i = 0; i < held.size(); ++i) {
    std::vector<Box> rest{held[i].box};
    bool meets = false;
    for (size_t j = 0; j < held.size(); ++j) {
      if (j == i || intersect(held[i].box, held[j].box).empty()) continue;
      meets = true;
      if (j < i) subtract_from(rest, held[j].box);
    }
    const std::vector<int32_t> first{held[i].ordinals.front()};
    for (const Box& box : rest) result.push_back({box, meets ? first : held[i].ordinals});
  }
  return result;
}

/// All boxes, by rank, tensor and start.
std::vector<OwnedBox> owned_boxes(const Layout& layout, const Spec& spec) {
  const auto num_tensors = static_cast<int32_t>(spec.tensors().size());
  HolderSets sets;
  std::vector<Demands> demands(layout.num_kinds());
  std::vector<std::vector<Holding>> holdings(layout.num_kinds());
  std::vector<bool> known(layout.num_kinds());
  std::vector<int32_t> kind_of(num_tensors);
  for (int32_t tensor = 0; tensor < num_tensors; ++tensor) {
    const int32_t kind = kind_of[tensor] = layout.kind_of(tensor);
    if (known[kind]) continue;
    known[kind] = true;
    demands[kind].elem_bytes = static_cast<int64_t>(dtype_bytes(spec.tensors()[tensor].dtype));
    holdings[kind] = owned_holdings(layout, tensor, sets, demands[kind]);
  }
  std::vector<const Demands*> kinds;
  for (const Demands& each : demands) kinds.push_back(&each);
  deal(sets, kinds, kind_of);
  std::vector<OwnedBox> owned;
  DemandPosition position(sets.size());
  for (int32_t tensor = 0; tensor < num_tensors; ++tensor) {
    const Demands& asked = demands[kind_of[tensor]];
    for (const Holding& each : holdings[kind_of[tensor]])
      share_out(sets.ends(each.set), position.of(each.set) + each.offset_bytes, each.box,
                asked.elem_bytes, [&](int32_t holder, const Box& box) {
                  owned.push_back({sets.ranks(each.set)[holder], tensor, box});
                });
    position.pass(asked);
  }
  std::sort(owned.begin(), owned.end(), [](const OwnedBox& a, const OwnedBox& b) {
    return std::tie(a.rank, a.tensor, a.box.start) < std::tie(b.rank, b.tensor, b.box.start);
  });
  return owned;
}

/// Each rank's boxes one after the other.
LayoutPtr store(const Layout& layout, const SpecPtr& spec, const std::vector<OwnedBox>& owned) {
  std::vector<std::string> names;
  for (const TensorInfo& info : spec->tensors()) names.push_back(info.name);
  Table<LocalTensor> locals;
  Table<Piece> pieces;
  for (const OwnedBox& each : owned) {
    if (locals.empty() || locals.back().rank != each.rank || locals.back().name != each.tensor) {
      locals.push_back({each.rank, each.tensor, spec->tensors()[each.tensor].dtype, {}});
      locals.back().shape.ndim = 1;
    }
    int64_t& length = locals.back().shape.size[0];
    const Shape size(std::span(each.box.size.data(), each.box.ndim));
    pieces.push_back({each.tensor, static_cast<int32_t>(locals.size()) - 1, each.rank, each.box,
                      LocalPlace{length, size.contiguous_strides()}});
    length += each.box.num_elems();
  }
  return std::make_shared<const Layout>(str_cat("owners of ", layout.text()), spec, layout.ranks(),
                                        std::move(names), std::move(locals), std::move(pieces));
}

}  // namespace

std::vector<Holding> owned_holdings(const Layout& layout, int32_t tensor, HolderSets& sets,
                                    Demands& demands) {
  const std::span<const Piece> pieces = layout.pieces_of(tensor);
  std::vector<Holding> held = find_holdings(pieces);
  std::vector<Box> boxes;
  for (const Holding& each : held) boxes.push_back(each.box);
  if (find_overlap(Box(layout.spec().tensors()[tensor].shape), boxes)) held = disjoint(held);
  std::map<int32_t, int64_t> bytes;  // by set
  for (Holding& each : held) {
    each.set = sets.index_of(ranks_of(pieces, each));
    each.offset_bytes = bytes[each.set];
    bytes[each.set] += each.box.num_elems() * demands.elem_bytes;
  }
  for (const auto& [set, sum] : bytes) demands.sets.push_back({set, sum});
  return held;
}

LayoutPtr owners_of(const LayoutPtr& layout, Dtype dtype) {
  if (layout->op() != Op::kCopy)
    throw UsageError("contributions have no owners", layout->text(),
                     "Use the layout that they are reduced into.");
  const auto spec = std::make_shared<const Spec>(layout->spec().with_dtype(dtype));
  return store(*layout, spec, owned_boxes(*layout, *spec));
}

}  // namespace hybridengine
