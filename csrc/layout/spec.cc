#include "layout/spec.h"

#include "base/error.h"
#include "base/hash.h"

namespace hybridengine {
namespace {

constexpr char kSpecMagic[] = "hybridengine.spec";
constexpr uint32_t kSpecVersion = 1;
constexpr size_t kSmallestEntryBytes = 8 + 1 + 4;  // empty name, dtype, no dims

}  // namespace

Spec::Spec(std::vector<TensorInfo> tensors,
           std::vector<std::pair<std::string, std::string>> aliases)
    : tensors_(std::move(tensors)), aliases_(std::move(aliases)) {
  index_.reserve(tensors_.size());
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto elem_bytes = static_cast<int64_t>(dtype_bytes(tensors_[i].dtype));
    int64_t tensor_bytes = 0;
    if (__builtin_mul_overflow(tensors_[i].shape.num_elems(), elem_bytes, &tensor_bytes) ||
        __builtin_add_overflow(bytes, tensor_bytes, &bytes))
      throw UsageError("a spec has more bytes than 63 bits count", tensors_[i].name, "");
    if (!index_.emplace(tensors_[i].name, static_cast<int32_t>(i)).second)
      throw UsageError("a spec names a tensor twice", tensors_[i].name, "");
  }
  for (const auto& [alias, owner] : aliases_) {
    if (find(alias) >= 0) throw UsageError("an alias has the name of a tensor", alias, "");
    if (find(owner) < 0)
      throw UsageError("an alias shares a tensor that is not in the spec",
                       str_cat("'", alias, "' of '", owner, "'"), "");
  }
}

int32_t Spec::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? -1 : found->second;
}

int64_t Spec::num_bytes() const {
  int64_t bytes = 0;
  for (const TensorInfo& tensor : tensors_)
    bytes += tensor.shape.num_elems() * static_cast<int64_t>(dtype_bytes(tensor.dtype));
  return bytes;
}

Spec Spec::with_dtype(Dtype dtype) const {
  if (!is_floating(dtype))
    throw UsageError("a floating element type is needed", std::string(dtype_name(dtype)), "");
  std::vector<TensorInfo> tensors = tensors_;
  for (TensorInfo& tensor : tensors)
    if (is_floating(tensor.dtype)) tensor.dtype = dtype;
  return Spec(std::move(tensors), aliases_);
}

std::string Spec::to_string() const {
  std::string text;
  for (const TensorInfo& tensor : tensors_)
    text +=
        str_cat(tensor.name, " ", tensor.shape.to_string(), " ", dtype_name(tensor.dtype), "\n");
  for (const auto& [alias, owner] : aliases_) text += str_cat(alias, " = ", owner, "\n");
  return text;
}

Blob Spec::save() const {
  BlobWriter writer(kSpecMagic, kSpecVersion);
  writer.put<uint64_t>(tensors_.size());
  for (const TensorInfo& tensor : tensors_) {
    writer.put_text(tensor.name);
    writer.put(tensor.dtype);
    writer.put<int32_t>(tensor.shape.ndim);
    for (int dim = 0; dim < tensor.shape.ndim; ++dim) writer.put(tensor.shape.size[dim]);
  }
  writer.put<uint64_t>(aliases_.size());
  for (const auto& [alias, owner] : aliases_) {
    writer.put_text(alias);
    writer.put_text(owner);
  }
  return std::move(writer).finish();
}

uint64_t Spec::digest() const { return digest_of(save()); }

Spec Spec::load(std::string_view blob) {
  BlobReader reader(blob, kSpecMagic, kSpecVersion);
  const auto num_tensors = reader.get<uint64_t>();
  reader.check_count(num_tensors, kSmallestEntryBytes);
  std::vector<TensorInfo> tensors(num_tensors);
  for (TensorInfo& tensor : tensors) {
    tensor.name = reader.get_text();
    tensor.dtype = reader.get_dtype();
    const auto ndim = reader.get<int32_t>();
    if (ndim < 0 || ndim > kMaxDims)
      throw UsageError("saved bytes hold a tensor with an impossible rank", str_cat(ndim, " dims"),
                       "");
    Dims sizes{};
    for (int dim = 0; dim < ndim; ++dim) sizes[dim] = reader.get<int64_t>();
    tensor.shape = Shape(std::span(sizes.data(), static_cast<size_t>(ndim)));
  }
  const auto num_aliases = reader.get<uint64_t>();
  reader.check_count(num_aliases, 16);
  std::vector<std::pair<std::string, std::string>> aliases(num_aliases);
  for (auto& [alias, owner] : aliases) {
    alias = reader.get_text();
    owner = reader.get_text();
  }
  reader.finish();
  return Spec(std::move(tensors), std::move(aliases));
}

}  // namespace hybridengine
