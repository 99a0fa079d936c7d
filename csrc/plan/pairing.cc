#include "plan/pairing.h"

#include <numeric>
#include <unordered_map>

#include "base/error.h"

namespace hybridengine {
namespace {

/// Enough to see the pattern of what differs; a wrong mapping differs in every tensor.
constexpr size_t kMaxListed = 8;

class Differences {
 public:
  void add(const std::string& line) {
    if (count_++ < kMaxListed) text_ += (text_.empty() ? "" : "; ") + line;
  }
  std::string text() const {
    return count_ > kMaxListed ? str_cat(text_, "; and ", count_ - kMaxListed, " more") : text_;
  }
  bool empty() const { return count_ == 0; }

 private:
  size_t count_ = 0;
  std::string text_;
};

/// Index in `src` of every tensor of `dst`, by name.
std::vector<int32_t> match_tensors(const Layout& src, const Layout& dst) {
  const std::vector<TensorInfo>& offered = src.spec().tensors();
  const std::vector<TensorInfo>& tensors = dst.spec().tensors();
  Differences differences;
  std::vector<int32_t> indices(tensors.size());
  if (&src.spec() == &dst.spec()) {
    std::iota(indices.begin(), indices.end(), 0);
    return indices;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& wanted = tensors[i];
    // Specs mostly have the same order; only where they do not is the name looked up.
    const bool in_place = i < offered.size() && offered[i].name == wanted.name;
    indices[i] = in_place ? static_cast<int32_t>(i) : src.spec().find(wanted.name);
    if (indices[i] < 0) {
      differences.add(str_cat("'", wanted.name, "' is only in ", dst.text()));
      continue;
    }
    const TensorInfo& found = offered[indices[i]];
    const bool converts = is_floating(found.dtype) && is_floating(wanted.dtype);
    if (found.shape != wanted.shape || (found.dtype != wanted.dtype && !converts))
      differences.add(str_cat("tensor '", wanted.name, "' is ", found.shape.to_string(), " ",
                              dtype_name(found.dtype), " in ", src.text(), " and ",
                              wanted.shape.to_string(), " ", dtype_name(wanted.dtype), " in ",
                              dst.text()));
  }
  // Names are unique, so where none is missing here and the counts agree, none is missing there.
  if (offered.size() != tensors.size() || !differences.empty())
    for (const TensorInfo& info : offered)
      if (dst.spec().find(info.name) < 0)
        differences.add(str_cat("'", info.name, "' is only in ", src.text()));
  if (!differences.empty())
    throw UsageError("layouts differ", differences.text(),
                     "Both must be bound to the same model; pad, trim or rename in the mapping.");
  return indices;
}

}  // namespace

Pairing pair_tensors(const Layout& src, const Layout& dst) {
  Pairing pairing{match_tensors(src, dst), {}, {}};
  const auto num_tensors = static_cast<int32_t>(pairing.src_tensor.size());
  pairing.kind_of.resize(num_tensors);
  std::unordered_map<int64_t, int32_t> index;
  for (int32_t tensor = 0; tensor < num_tensors; ++tensor) {
    const int32_t src_tensor = pairing.src_tensor[tensor];
    const int64_t key = int64_t{src.kind_of(src_tensor)} * dst.num_kinds() + dst.kind_of(tensor);
    const auto [entry, fresh] = index.emplace(key, static_cast<int32_t>(pairing.kinds.size()));
    if (fresh) pairing.kinds.push_back({src_tensor, tensor, 0});
    ++pairing.kinds[entry->second].count;
    pairing.kind_of[tensor] = entry->second;
  }
  return pairing;
}

}  // namespace hybridengine
