#include "layout/share.h"

#include <algorithm>

#include "base/error.h"

namespace hybridengine {
namespace {

struct Narrowed {
  int64_t start, size, local_size;
};

[[noreturn]] void refuse_cut(const TensorInfo& tensor, const Cut& cut, const Mesh& mesh,
                             const std::string& why) {
  throw UsageError(str_cat("'", tensor.name, "' ", tensor.shape.to_string(), " cannot be cut"),
                   str_cat("dim ", cut.dim, " by ", mesh.axes[cut.axis].name, "=",
                           mesh.axes[cut.axis].size, ", ", why),
                   "");
}

Narrowed narrow_units(const TensorInfo& tensor, const Cut& cut, const Mesh& mesh, int64_t n,
                      int64_t coordinate) {
  const int64_t axis = mesh.axes[cut.axis].size;
  if (cut.units <= 0 || n % cut.units != 0)
    refuse_cut(tensor, cut, mesh, str_cat(n, " rows are not ", cut.units, " equal units"));
  const int64_t unit = n / cut.units;
  if (cut.units % axis == 0) {
    const int64_t size = cut.units / axis * unit;
    return {coordinate * size, size, size};
  }
  if (axis % cut.units != 0)
    refuse_cut(tensor, cut, mesh, str_cat(cut.units, " units do not divide"));
  return {coordinate / (axis / cut.units) * unit, unit, unit};
}

Narrowed narrow(const TensorInfo& tensor, const Cut& cut, const Mesh& mesh, int64_t n,
                int64_t coordinate) {
  const int64_t axis = mesh.axes[cut.axis].size;
  switch (cut.kind) {
    case CutKind::kChunk: {
      const int64_t rows = (n + axis - 1) / axis;
      const int64_t start = std::min(coordinate * rows, n);
      const int64_t size = std::min(rows, n - start);
      return {start, size, size};
    }
    case CutKind::kEven: {
      if (n % axis != 0) refuse_cut(tensor, cut, mesh, str_cat(n, " does not divide"));
      return {coordinate * (n / axis), n / axis, n / axis};
    }
    case CutKind::kUnits:
      return narrow_units(tensor, cut, mesh, n, coordinate);
    case CutKind::kPadded: {
      const int64_t padded = (n + cut.units - 1) / cut.units * cut.units;
      if (padded % axis != 0)
        refuse_cut(tensor, cut, mesh, str_cat(n, " padded to ", padded, " does not divide"));
      const int64_t start = std::min(coordinate * (padded / axis), n);
      return {start, std::min(padded / axis, n - start), padded / axis};
    }
  }
  throw InternalError("unknown kind of cut", str_cat(static_cast<int>(cut.kind)), "");
}

}  // namespace

Share share_of(const TensorInfo& tensor, const TensorRule& rule, const Mesh& mesh,
               int32_t position) {
  Share share{Box(tensor.shape), tensor.shape.size};
  for (const Cut& cut : rule.cuts) {
    if (tensor.shape.ndim == 0 && cut.kind == CutKind::kChunk) continue;
    if (cut.dim < 0 || cut.dim >= tensor.shape.ndim) refuse_cut(tensor, cut, mesh, "no such dim");
    if (share.local_size[cut.dim] != share.box.size[cut.dim])
      refuse_cut(tensor, cut, mesh, "it is padded already");
    const Narrowed part =
        narrow(tensor, cut, mesh, share.box.size[cut.dim], mesh.coordinate(position, cut.axis));
    share.box.start[cut.dim] += part.start;
    share.box.size[cut.dim] = part.size;
    share.local_size[cut.dim] = part.local_size;
  }
  return share;
}

}  // namespace hybridengine
