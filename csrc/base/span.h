// A piece of memory: address and length in bytes. Owns nothing.
#pragma once

#include <cstddef>

namespace hybridengine {

struct Span {
  std::byte* data = nullptr;
  size_t bytes = 0;

  bool contains(const std::byte* address, size_t count) const {
    return address >= data && count <= bytes &&
           static_cast<size_t>(address - data) <= bytes - count;
  }
};

}  // namespace hybridengine
