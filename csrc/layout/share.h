// Share: what the cuts of a tensor rule leave of a tensor on one mesh position.
//
// Called by bind.
#pragma once

#include <cstdint>

#include "layout/box.h"
#include "layout/rule.h"
#include "layout/spec.h"

namespace hybridengine {

struct Share {
  Box box;
  Dims local_size{};  // box.size, or more where padded
};

/// Applies the rule's cuts one after the other. Throws UsageError where one cannot divide its dim.
Share share_of(const TensorInfo& tensor, const TensorRule& rule, const Mesh& mesh,
               int32_t position);

}  // namespace hybridengine
