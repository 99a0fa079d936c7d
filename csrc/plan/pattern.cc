#include "plan/pattern.h"

#include <algorithm>

#include "base/error.h"

namespace hybridengine {
namespace {

struct Atom {
  Box box;
  std::vector<int32_t> ordinals;  // of the source pieces, one per holder
  int32_t holder_set = 0;
};

std::vector<Atom> find_atoms(std::span<const Piece> pieces, HolderSets& sets) {
  std::vector<Atom> atoms;
  std::map<std::pair<Dims, Dims>, size_t> index;
  for (int32_t i = 0; i < static_cast<int32_t>(pieces.size()); ++i) {
    const Box& box = pieces[i].box;
    const auto [entry, fresh] = index.emplace(std::pair(box.start, box.size), atoms.size());
    if (fresh) atoms.push_back({box, {}, 0});
    std::vector<int32_t>& ordinals = atoms[entry->second].ordinals;
    // A rank may hold a box twice; one place is enough.
    if (ordinals.empty() || pieces[ordinals.back()].rank != pieces[i].rank) ordinals.push_back(i);
  }
  std::vector<Rank> ranks;
  for (Atom& atom : atoms) {
    ranks.clear();
    for (const int32_t ordinal : atom.ordinals) ranks.push_back(pieces[ordinal].rank);
    atom.holder_set = sets.index_of(ranks);
  }
  return atoms;
}

/// What of a destination piece has no part yet.
class Missing {
 public:
  explicit Missing(const Box& whole) : boxes_{whole} {}

  /// Takes `from` out, calling `found(part)` on what it takes.
  template <class Found>
  void take_out(const Box& from, const Found& found) {
    next_.clear();
    for (const Box& box : boxes_) {
      const Box common = intersect(box, from);
      if (common.empty()) {
        next_.push_back(box);
        continue;
      }
      found(common);
      subtract(box, common, next_);
    }
    boxes_.swap(next_);
  }
  bool none() const { return boxes_.empty(); }
  const Box& first() const { return boxes_.front(); }

 private:
  std::vector<Box> boxes_, next_;
};

}  // namespace

int32_t HolderSets::index_of(const std::vector<Rank>& ranks) {
  const auto [entry, fresh] = index_.emplace(ranks, size());
  if (fresh) sets_.push_back(&entry->first);
  return entry->second;
}

std::vector<Part> make_parts(const Layout& src, const Layout& dst, const PairKind& kind,
                             HolderSets& sets) {
  const std::span<const Piece> offered = src.pieces_of(kind.src_tensor);
  const std::span<const Piece> wanted = dst.pieces_of(kind.dst_tensor);
  const std::vector<Atom> atoms = find_atoms(offered, sets);
  std::vector<Part> parts;
  for (int32_t i = 0; i < static_cast<int32_t>(wanted.size()); ++i) {
    const Piece& piece = wanted[i];
    Missing missing(piece.box);
    const auto [own, own_end] =
        std::equal_range(offered.begin(), offered.end(), piece,
                         [](const Piece& a, const Piece& b) { return a.rank < b.rank; });
    for (auto held = own; held != own_end; ++held)
      missing.take_out(held->box, [&](const Box& box) {
        parts.push_back({box, i, -1, {static_cast<int32_t>(held - offered.begin())}});
      });
    for (const Atom& atom : atoms) {
      if (missing.none()) break;
      missing.take_out(atom.box, [&](const Box& box) {
        parts.push_back({box, i, atom.holder_set, atom.ordinals});
      });
    }
    if (!missing.none())
      throw UsageError("no source rank holds a part of a tensor",
                       str_cat("'", dst.spec().tensors()[kind.dst_tensor].name, "' ",
                               missing.first().to_string(), " of ", src.text()),
                       "");
  }
  return parts;
}

}  // namespace hybridengine
