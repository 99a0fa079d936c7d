// Spec: the logical tensors of a model, under the names and shapes of its checkpoint.
//
// No weights, no ranks. An *alias* is a second name for the same storage (tied weights): it is
// never moved, the owner of the local tensors shares the storage again at the other end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/blob.h"
#include "base/dtype.h"
#include "layout/box.h"

namespace hybridengine {

struct TensorInfo {
  std::string name;
  Shape shape;
  Dtype dtype = Dtype::kFloat32;
  bool operator==(const TensorInfo& other) const = default;
};

class Spec {
 public:
  /// Throws UsageError on two tensors (or a tensor and an alias) of one name, an alias of a tensor
  /// that is not there, or more bytes than 63 bits count.
  Spec(std::vector<TensorInfo> tensors, std::vector<std::pair<std::string, std::string>> aliases);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// (alias, name of the tensor it shares).
  const std::vector<std::pair<std::string, std::string>>& aliases() const { return aliases_; }
  /// Index of a tensor by name, -1 where there is none. Aliases are not followed.
  int32_t find(std::string_view name) const;
  int64_t num_bytes() const;

  /// The same spec with every floating tensor as `dtype`.
  Spec with_dtype(Dtype dtype) const;

  std::string to_string() const;  // one line per tensor: "name [shape] dtype"
  uint64_t digest() const;
  Blob save() const;
  static Spec load(std::string_view blob);
  bool operator==(const Spec& other) const {
    return tensors_ == other.tensors_ && aliases_ == other.aliases_;
  }

 private:
  std::vector<TensorInfo> tensors_;
  std::vector<std::pair<std::string, std::string>> aliases_;
  std::unordered_map<std::string, int32_t> index_;
};

using SpecPtr = std::shared_ptr<const Spec>;

}  // namespace hybridengine
