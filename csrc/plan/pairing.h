// Pairing: which tensors of two layouts are the same one, and which of them need the same moves.
//
// Vocabulary: tensors whose kinds agree on both sides (see Layout::kind_of) form a *pair kind*:
// boxes, ranks and element types at both ends are equal, so what must move is worked out once.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/layout.h"

namespace hybridengine {

struct PairKind {
  int32_t src_tensor = 0;  // an example
  int32_t dst_tensor = 0;
  int64_t count = 0;  // tensors of this kind
};

struct Pairing {
  std::vector<int32_t> src_tensor;  // by tensor of the destination's spec
  std::vector<int32_t> kind_of;     // the same; index into kinds
  std::vector<PairKind> kinds;      // in the order of their first tensors
};

/// Throws UsageError listing names, shapes and element types that differ; types may differ only
/// between floating ones.
Pairing pair_tensors(const Layout& src, const Layout& dst);

}  // namespace hybridengine
