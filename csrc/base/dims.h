// Dims: one number per dim of a tensor, such as sizes or strides.
#pragma once

#include <array>
#include <cstdint>

namespace hybridengine {

/// More dims than any weight in use (5, a 3-d convolution); small enough to keep Moves flat.
inline constexpr int kMaxDims = 6;

using Dims = std::array<int64_t, kMaxDims>;

}  // namespace hybridengine
