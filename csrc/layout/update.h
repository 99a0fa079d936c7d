// UpdateLayouts: the movement that follows an optimizer step, as one pair of layouts.
//
// Owners have new values, and two other layouts are to have them: that of training and that of
// generation. A logical tensor `w` appears twice, as `training:w` in the element type of training
// and as `generation:w` in that of generation; so do local tensors. One plan then carries both.
#pragma once

#include "layout/layout.h"

namespace hybridengine {

struct UpdateLayouts {
  LayoutPtr src;  // the owners' pieces, flat, in the types in which they travel
  LayoutPtr dst;  // the tensors of training, and what is left to send of those of generation
};

/// All three must hold the same logical tensors. Of a generation box, what the same rank has in
/// training is left out where it can be copied from there bit by bit: the types are equal, or
/// training is in the type of `owners`. So `generation:` tensors need not be covered, and those
/// without any piece in `dst` have none in `src` either.
UpdateLayouts make_update(const LayoutPtr& owners, const LayoutPtr& train, const LayoutPtr& gen);

}  // namespace hybridengine
