// LayoutRule: how the ranks of a mesh cut tensors, with no shapes in it.
//
// Vocabulary: a *mesh* has named axes, the last one fastest; mesh position p sits on rank
// ranks[p]. A *template* is a tensor name whose numeric path components are written '*'
// ("model.layers.*.mlp.up_proj.weight"). A *tensor rule* says, for the tensors of one template,
// into which local tensor they go, at which slot of it (fused tensors are several slots joined
// along cat_dim), which cuts are applied, one after the other, and on which mesh positions they
// live at all. A *cut* divides one dim along one axis.
//
// What it is not: knowledge of architectures. Python's mapping/ writes these rules; bind() (see
// layout.h) runs them over a spec.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/rank.h"

namespace hybridengine {

struct Axis {
  std::string name;
  int32_t size = 1;
  bool operator==(const Axis& other) const = default;
};

struct Mesh {
  std::vector<Axis> axes;   // last axis fastest
  std::vector<Rank> ranks;  // rank of each mesh position, all different

  /// Product of the axis sizes. Throws UsageError unless each is positive and it equals
  /// ranks.size().
  int32_t num_positions() const;
  /// Coordinate of mesh position `position` along `axis`.
  int32_t coordinate(int32_t position, int axis) const;
  int axis_index(const std::string& name) const;  // throws UsageError listing the axes
  bool operator==(const Mesh& other) const = default;
};

enum class CutKind : uint8_t {
  kChunk,   // torch.chunk, as FSDP2: ceil(n / size) rows each, the last ones fewer or none; a
            // 0-dim tensor has nothing to chunk and is whole everywhere
  kEven,    // n must divide by the axis size
  kUnits,   // n is `units` equal units (heads); where the axis is larger, ranks share a unit
  kPadded,  // n is padded to a multiple of `units`, which then divides; padding rows are not sent
};

struct Cut {
  int dim = 0;
  int axis = 0;
  CutKind kind = CutKind::kEven;
  int64_t units = 1;
  bool operator==(const Cut& other) const = default;
};

/// Lives only where the mesh coordinate along `axis` is in [begin, end).
struct Where {
  int axis = 0;
  int32_t begin = 0;
  int32_t end = 0;
  bool operator==(const Where& other) const = default;
};

struct TensorRule {
  std::string from;  // template of the logical name, or one name, which goes before its template;
                     // "**" matches whatever no other rule does
  std::string to;    // template of the local name, with the same number of '*'; "**" keeps the name
  int32_t slot = 0;  // order within a fused local tensor
  int cat_dim = 0;
  std::vector<Cut> cuts;
  std::vector<Where> where;
  /// The first '*' is a layer: it lives where `layer_axis` has the coordinate that owns it
  /// (LayoutRule::layers). -1: on every position.
  int layer_axis = -1;
  bool operator==(const TensorRule& other) const = default;
};

struct LayoutRule {
  std::string text;  // as the user wrote it, e.g. "vllm(tp=3,dp=2)"
  Mesh mesh;
  std::vector<TensorRule> rules;
  std::vector<int64_t> layers;  // layers per coordinate of the layer axis, in order; may be empty
  bool operator==(const LayoutRule& other) const = default;
};

/// "model.layers.7.mlp.up_proj.weight" -> "model.layers.*.mlp.up_proj.weight", and 7. A component
/// counts as numeric when it is digits only. Both results are overwritten: a caller with many names
/// keeps their memory.
void find_template(std::string_view name, std::string& result, std::vector<int64_t>& numbers);

}  // namespace hybridengine
