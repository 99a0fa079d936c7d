// The proof of a layout, apart from the code that makes one.
//
// Claims: a piece *claims* the local elements at its place: offset + the sum of stride * index over
// its dims. Two claims have an element in common when
//
//   sum of stride * index (of one) - sum of stride * index (of the other) = difference of offsets
//
// has a solution within the sizes; a claim meets itself when the same sum over index differences is
// zero without all of them being. Terms of equal stride are merged and the largest stride is tried
// first. What the smaller terms can still add up to leaves two or three indices to try, for places
// that nest as those of shards do, so no element is ever marked one by one.
#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "layout/layout.h"

namespace hybridengine {
namespace {

using Wide = __int128;  // offsets may come from a file: products must not wrap

/// Indices tried for one pair of claims. Nested places need a few dozen; more is a riddle.
constexpr int kMaxTries = 1 << 14;

struct Claim {
  const Piece* piece;
  int64_t first, last;  // smallest and largest local element
};

struct Term {  // stride * index, low <= index <= high
  int64_t stride, low, high;
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

/// Whether some indices make the sum of `terms` (largest stride first) equal to `target`. Takes
/// from `tries` and gives up below zero.
bool reaches(std::span<const Term> terms, Wide target, int& tries) {
  if (terms.empty()) return target == 0;
  Wide rest_low = 0, rest_high = 0;
  for (const Term& term : terms.subspan(1)) {
    rest_low += Wide{term.stride} * term.low;
    rest_high += Wide{term.stride} * term.high;
  }
  const Term& term = terms.front();
  const auto divide_up = [](Wide a, Wide b) { return a / b + (a % b > 0 ? 1 : 0); };
  const Wide low = std::max<Wide>(term.low, divide_up(target - rest_high, term.stride));
  const Wide high = std::min<Wide>(term.high, -divide_up(rest_low - target, term.stride));
  for (Wide index = low; index <= high; ++index)
    if (--tries < 0 || reaches(terms.subspan(1), target - index * term.stride, tries)) return true;
  return false;
}

/// Adds the terms of one claim, its indices counted up or down.
void add_terms(const Piece& piece, bool up, std::vector<Term>& terms) {
  for (int dim = 0; dim < piece.box.ndim; ++dim) {
    const int64_t most = piece.box.size[dim] - 1;
    if (most > 0) terms.push_back({piece.place.strides[dim], up ? 0 : -most, up ? most : 0});
  }
}

void merge_terms(std::vector<Term>& terms) {
  std::sort(terms.begin(), terms.end(),
            [](const Term& a, const Term& b) { return a.stride > b.stride; });
  size_t kept = 0;
  for (size_t i = 1; i < terms.size(); ++i) {
    if (terms[i].stride == terms[kept].stride) {
      terms[kept].low += terms[i].low;
      terms[kept].high += terms[i].high;
    } else {
      terms[++kept] = terms[i];
    }
  }
  terms.resize(std::min(terms.size(), kept + 1));
}

[[noreturn]] void refuse(const Layout& layout, const Claim& one, const Claim& other, int tries) {
  const std::string facts =
      one.piece == other.piece
          ? describe(layout, *one.piece)
          : str_cat(describe(layout, *one.piece), " and ", describe(layout, *other.piece));
  if (tries < 0)
    throw UsageError("pieces of a local tensor are too entangled to be told apart", facts,
                     "Describe it with more pieces.");
  throw UsageError("a local element is claimed twice", facts, "");
}

void check_apart(const Layout& layout, const Claim& one, const Claim& other,
                 std::vector<Term>& terms) {
  terms.clear();
  add_terms(*one.piece, true, terms);
  add_terms(*other.piece, false, terms);
  merge_terms(terms);
  int tries = kMaxTries;
  if (reaches(terms, Wide{other.first} - one.first, tries)) refuse(layout, one, other, tries);
}

/// A claim must not meet itself: the first index that differs is taken as the larger one.
void check_injective(const Layout& layout, const Claim& claim, std::vector<Term>& terms) {
  terms.clear();
  add_terms(*claim.piece, true, terms);
  const size_t num_dims = terms.size();
  merge_terms(terms);
  int tries = kMaxTries;
  if (terms.size() < num_dims) refuse(layout, claim, claim, tries);  // two dims of one stride
  for (size_t i = terms.size(); i > 0; --i) {
    terms[i - 1].low = 1;
    if (reaches(std::span(terms).subspan(i - 1), 0, tries)) refuse(layout, claim, claim, tries);
    terms[i - 1].low = -terms[i - 1].high;
  }
}

/// `claims` are those of one local tensor, ascending by first element.
void check_claims(const Layout& layout, std::span<const Claim> claims, std::vector<Term>& terms) {
  std::vector<const Claim*> open;  // those whose range reaches to the next one
  for (const Claim& claim : claims) {
    check_injective(layout, claim, terms);
    std::erase_if(open, [&](const Claim* other) { return other->last < claim.first; });
    for (const Claim* other : open) check_apart(layout, *other, claim, terms);
    open.push_back(&claim);
  }
}

void check_size(const Layout& layout) {
  int64_t bytes = 0;
  for (const LocalTensor& local : layout.locals()) {
    int64_t local_bytes = 0;
    if (__builtin_mul_overflow(local.shape.num_elems(), dtype_bytes(local.dtype), &local_bytes) ||
        __builtin_add_overflow(bytes, local_bytes, &bytes))
      throw UsageError("a layout has more bytes than 63 bits count", layout.text(), "");
  }
}

}  // namespace

void Layout::check_covered(int32_t tensor) const {
  const TensorInfo& info = spec_->tensors()[tensor];
  const auto key = [](const Box& box) { return std::tie(box.start, box.size); };
  std::vector<Box> held, missing, next;
  for (const Piece& piece : pieces_of(tensor)) held.push_back(piece.box);
  std::sort(held.begin(), held.end(), [&](const Box& a, const Box& b) { return key(a) < key(b); });
  held.erase(std::unique(held.begin(), held.end()), held.end());
  if (info.shape.num_elems() > 0) missing.emplace_back(info.shape);
  for (auto box = held.begin(); box != held.end() && !missing.empty(); ++box) {
    next.clear();
    for (const Box& part : missing) {
      const Box common = intersect(part, *box);
      if (common.empty())
        next.push_back(part);
      else
        subtract(part, common, next);
    }
    missing.swap(next);
  }
  if (!missing.empty())
    throw UsageError("no rank holds a part of a tensor",
                     str_cat("'", info.name, "' ", info.shape.to_string(), ", part ",
                             missing.front().to_string(), ", layout ", text_),
                     "");
}

void Layout::check() const {
  check_size(*this);
  std::vector<Claim> claims;
  claims.reserve(pieces_.size());
  for (const Piece& piece : pieces_) claims.push_back(claim_of(*this, piece));
  std::sort(claims.begin(), claims.end(), [](const Claim& a, const Claim& b) {
    return std::tie(a.piece->local, a.first) < std::tie(b.piece->local, b.first);
  });
  std::vector<Term> terms;
  for (size_t begin = 0, end; begin < claims.size(); begin = end) {
    for (end = begin + 1;
         end < claims.size() && claims[end].piece->local == claims[begin].piece->local;)
      ++end;
    check_claims(*this, std::span(claims).subspan(begin, end - begin), terms);
  }
  std::vector<bool> seen(num_kinds_);
  for (int32_t tensor = 0; tensor < static_cast<int32_t>(kinds_.size()); ++tensor) {
    if (!seen[kinds_[tensor]]) check_covered(tensor);
    seen[kinds_[tensor]] = true;
  }
}

}  // namespace hybridengine
