// FlatMemory: a tensor as one row of elements in row-major order, whatever its strides.
//
// What it is not: an owner. Called by the collectives that cut tensors without regard to dims.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/memory.h"

namespace hybridengine {

class FlatMemory {
 public:
  FlatMemory() = default;
  explicit FlatMemory(const TensorMemory& memory);

  int64_t num_elems() const { return num_elems_; }
  Dtype dtype() const { return memory_.dtype; }
  size_t elem_bytes() const { return dtype_bytes(memory_.dtype); }

  /// Whether the elements lie one after the other, so that at() may be used.
  bool contiguous() const { return contiguous_; }
  std::byte* at(int64_t elem) const {
    return memory_.data + elem * static_cast<int64_t>(elem_bytes());
  }

  /// Copies elements [begin, end) to contiguous memory, or from there.
  void read(int64_t begin, int64_t end, std::byte* dst) const;
  void write(int64_t begin, int64_t end, const std::byte* src) const;
  /// The same past the cache, where elements lie one after the other. stream_fence() must follow.
  void stream_from(int64_t begin, int64_t end, std::byte* dst) const;
  void stream_to(int64_t begin, int64_t end, const std::byte* src) const;

 private:
  template <class Copy>
  void each_box(int64_t begin, int64_t end, const Copy& copy) const;

  TensorMemory memory_;
  int64_t num_elems_ = 0;
  bool contiguous_ = true;
};

}  // namespace hybridengine
