// Folding: contributions of several ranks become their result.
//
// All contributions to a box are taken at once, in the order in which they are listed. What comes
// out does not depend on where boxes begin and end.
//
// What it is not: aware of ranks, or of where the contributions came from. Called by Copier.
#pragma once

#include <vector>

#include "base/op.h"
#include "device/copy.h"
#include "layout/box.h"

namespace hybridengine {

/// A box that is combined.
struct FoldStep {
  StridedEnd dst;
  Op op = Op::kSum;
  Box box;
  size_t num_contributions = 0;
};

struct FoldList {
  std::vector<FoldStep> steps;
  /// Contributions, step by step; those of one step have one type.
  std::vector<StridedEnd> contributions;

  void clear() {
    steps.clear();
    contributions.clear();
  }
};

void fold_boxes(const FoldList& list);

}  // namespace hybridengine
