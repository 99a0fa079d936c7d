// The proof of a layout, apart from the code that makes one.
//
// Claims: a piece *claims* the local elements at its place. Most pieces claim a box of the local
// tensor's own index space; those are compared as boxes. What is no box (a row group with a gap,
// say) is marked element by element, in a bitmap of that one local tensor.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "layout/layout.h"

namespace hybridengine {
namespace {

using Wide = __int128;  // offsets may come from a file: products must not wrap

/// A bitmap of 2^30 elements is 128 MB: enough for any tensor that is cut in an unusual way.
constexpr int64_t kMaxBitmapElems = int64_t{1} << 30;

struct Claim {
  const Piece* piece;
  int64_t first, last;  // smallest and largest local element
};

std::string describe(const Layout& layout, const Piece& piece) {
  return str_cat("'", layout.spec().tensors()[piece.tensor].name, "' ", piece.box.to_string(),
                 " in '", layout.name_of(layout.locals()[piece.local]), "' ",
                 layout.locals()[piece.local].shape.to_string(), " of rank ", piece.rank);
}

Claim claim_of(const Layout& layout, const Piece& piece) {
  const LocalTensor& local = layout.locals()[piece.local];
  if (layout.spec().tensors()[piece.tensor].dtype != local.dtype)
    throw UsageError("a local tensor has another element type than its tensor",
                     str_cat(describe(layout, piece), ", ", dtype_name(local.dtype), " and ",
                             dtype_name(layout.spec().tensors()[piece.tensor].dtype)),
                     "To convert on the way, bind the destination to spec.with_dtype().");
  Wide last = piece.place.offset_elems;
  bool legal = piece.place.offset_elems >= 0;
  for (int dim = 0; dim < piece.box.ndim; ++dim) {
    if (piece.box.size[dim] > 1 && piece.place.strides[dim] <= 0) legal = false;
    last += Wide{piece.box.size[dim] - 1} * piece.place.strides[dim];
  }
  if (!legal || last >= local.shape.num_elems())
    throw UsageError("a piece does not lie within its local tensor", describe(layout, piece), "");
  return {&piece, piece.place.offset_elems, static_cast<int64_t>(last)};
}

/// The claimed elements as a box of the local tensor, where they are one.
std::optional<Box> local_box(const Shape& local, const Piece& piece) {
  const Dims strides = local.contiguous_strides();
  Box box(local);
  int64_t offset = piece.place.offset_elems;
  for (int dim = 0; dim < local.ndim; ++dim) {
    box.start[dim] = offset / strides[dim];
    box.size[dim] = 1;
    offset %= strides[dim];
  }
  for (int dim = 0; dim < piece.box.ndim; ++dim) {
    if (piece.box.size[dim] == 1) continue;
    int home = 0;
    while (home < local.ndim && (strides[home] != piece.place.strides[dim] || box.size[home] > 1 ||
                                 box.start[home] + piece.box.size[dim] > local.size[home]))
      ++home;
    if (home == local.ndim) return std::nullopt;
    box.size[home] = piece.box.size[dim];
  }
  return box;
}

void mark(std::vector<bool>& taken, const Layout& layout, const Piece& piece) {
  Dims index{};
  for (int64_t left = piece.box.num_elems(); left > 0; --left) {
    int64_t at = piece.place.offset_elems;
    for (int dim = 0; dim < piece.box.ndim; ++dim) at += index[dim] * piece.place.strides[dim];
    if (taken[at])
      throw UsageError("a local element is claimed twice",
                       str_cat("element ", at, " by ", describe(layout, piece)), "");
    taken[at] = true;
    for (int dim = piece.box.ndim - 1; dim >= 0 && ++index[dim] == piece.box.size[dim]; --dim)
      index[dim] = 0;
  }
}

void check_with_bitmap(const Layout& layout, std::span<const Claim> claims) {
  const int64_t elems = layout.locals()[claims.front().piece->local].shape.num_elems();
  if (elems > kMaxBitmapElems)
    throw UsageError("a local tensor is too large for pieces that are no boxes of it",
                     describe(layout, *claims.front().piece), "Describe it with more pieces.");
  std::vector<bool> taken(elems);
  for (const Claim& claim : claims) mark(taken, layout, *claim.piece);
}

/// `claims` are those of one local tensor, ascending by first element.
void check_disjoint(const Layout& layout, std::span<const Claim> claims) {
  std::vector<std::pair<const Claim*, Box>> open;  // claims whose range reaches to the next one
  const Shape& shape = layout.locals()[claims.front().piece->local].shape;
  for (const Claim& claim : claims) {
    const std::optional<Box> box = local_box(shape, *claim.piece);
    if (!box) return check_with_bitmap(layout, claims);
    std::erase_if(open, [&](const auto& entry) { return entry.first->last < claim.first; });
    for (const auto& [other, other_box] : open)
      if (!intersect(*box, other_box).empty())
        throw UsageError(
            "a local element is claimed twice",
            str_cat(describe(layout, *other->piece), " and ", describe(layout, *claim.piece)), "");
    open.emplace_back(&claim, *box);
  }
}

void check_covered(const Layout& layout, int32_t tensor) {
  const TensorInfo& info = layout.spec().tensors()[tensor];
  std::vector<Box> missing, next, seen;
  if (info.shape.num_elems() > 0) missing.emplace_back(info.shape);
  for (const Piece& piece : layout.pieces_of(tensor)) {
    if (missing.empty()) return;
    if (!seen.empty() && std::find(seen.begin(), seen.end(), piece.box) != seen.end()) continue;
    seen.push_back(piece.box);
    next.clear();
    for (const Box& box : missing) {
      const Box common = intersect(box, piece.box);
      if (common.empty())
        next.push_back(box);
      else
        subtract(box, common, next);
    }
    missing.swap(next);
  }
  if (!missing.empty())
    throw UsageError("no rank holds a part of a tensor",
                     str_cat("'", info.name, "' ", info.shape.to_string(), ", part ",
                             missing.front().to_string(), ", layout ", layout.text()),
                     "");
}

}  // namespace

void Layout::check() const {
  std::vector<Claim> claims;
  claims.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    if (piece.box.ndim != spec_->tensors()[piece.tensor].shape.ndim ||
        !Box(spec_->tensors()[piece.tensor].shape).contains(piece.box))
      throw UsageError("a piece lies outside of its tensor", describe(*this, piece), "");
    claims.push_back(claim_of(*this, piece));
  }
  std::sort(claims.begin(), claims.end(), [](const Claim& a, const Claim& b) {
    return std::tie(a.piece->local, a.first) < std::tie(b.piece->local, b.first);
  });
  for (size_t begin = 0, end; begin < claims.size(); begin = end) {
    for (end = begin + 1;
         end < claims.size() && claims[end].piece->local == claims[begin].piece->local;)
      ++end;
    if (end - begin > 1 ||
        !local_box(locals_[claims[begin].piece->local].shape, *claims[begin].piece))
      check_disjoint(*this, std::span(claims).subspan(begin, end - begin));
  }
  for (int32_t tensor = 0; tensor < static_cast<int32_t>(spec_->tensors().size()); ++tensor)
    check_covered(*this, tensor);
}

}  // namespace hybridengine
