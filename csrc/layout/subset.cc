#include "layout/subset.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"

namespace hybridengine {
namespace {

/// `pieces` count tensors of `spec` and locals of `layout`.
LayoutPtr with_pieces(const Layout& layout, SpecPtr spec, Table<Piece> pieces) {
  std::vector<bool> used(layout.locals().size());
  for (const Piece& piece : pieces) used[piece.local] = true;
  std::vector<int32_t> index(layout.locals().size());
  Table<LocalTensor> locals;
  std::vector<std::string> names;
  for (size_t i = 0; i < index.size(); ++i) {
    const LocalTensor& local = layout.locals()[i];
    if (!used[i]) continue;
    index[i] = static_cast<int32_t>(locals.size());
    locals.push_back(local);
    names.resize(std::max(names.size(), static_cast<size_t>(local.name) + 1));
    names[local.name] = layout.name_of(local);
  }
  for (Piece& piece : pieces) piece.local = index[piece.local];
  auto result =
      std::make_shared<const Layout>(layout.text(), std::move(spec), layout.ranks(),
                                     std::move(names), std::move(locals), std::move(pieces));
  return layout.op() == Op::kCopy ? result : result->partial(layout.op());
}

/// Ranks that hold the same boxes of everything have one *role*.
class Roles {
 public:
  explicit Roles(const Layout& layout) : layout_(layout), held_(layout.ranks().back() + 1) {
    std::map<std::tuple<int32_t, Dims, Dims>, int32_t> boxes;  // by kind
    for (const Piece& piece : layout.pieces()) {
      const auto [entry, fresh] = boxes.emplace(
          std::tuple(layout.kind_of(piece.tensor), piece.box.start, piece.box.size), boxes.size());
      held_[piece.rank].emplace(piece.tensor, entry->second);
    }
    std::map<std::set<std::pair<int32_t, int32_t>>, int32_t> index;
    for (const auto& held : held_)
      role_.push_back(index.emplace(held, static_cast<int32_t>(index.size())).first->second);
  }

  int32_t of(Rank rank) const { return role_[rank]; }

  void check_same_tensors(int32_t tensor, Rank a, Rank b) const {
    if (tensors_of(a) == tensors_of(b)) return;
    throw UsageError(
        "ranks of one layout hold parts of different models",
        str_cat("'", layout_.spec().tensors()[tensor].name, "' is on ranks ", a, " and ", b, " of ",
                layout_.text(), ", which do not have the same tensors"),
        "Pipeline stages cannot be told from copies: use a layout where every rank has a part of "
        "each tensor.");
  }

 private:
  std::set<int32_t> tensors_of(Rank rank) const {
    std::set<int32_t> tensors;
    for (const auto& [tensor, box] : held_[rank]) tensors.insert(tensor);
    return tensors;
  }

  const Layout& layout_;
  std::vector<std::set<std::pair<int32_t, int32_t>>> held_;  // (tensor, box) by rank
  std::vector<int32_t> role_;                                // by rank
};

}  // namespace

LayoutPtr select_tensors(const LayoutPtr& layout, const std::vector<std::string>& names) {
  const Spec& spec = layout->spec();
  std::vector<int32_t> index(spec.tensors().size(), -1);
  for (const std::string& name : names) {
    if (spec.find(name) < 0)
      throw UsageError("a tensor is not in its layout", str_cat("'", name, "', ", layout->text()),
                       "");
    index[spec.find(name)] = 0;
  }
  std::vector<TensorInfo> tensors;
  for (size_t i = 0; i < index.size(); ++i) {
    if (index[i] < 0) continue;
    index[i] = static_cast<int32_t>(tensors.size());
    tensors.push_back(spec.tensors()[i]);
  }
  std::vector<std::pair<std::string, std::string>> aliases = spec.aliases();
  std::erase_if(aliases, [&](const auto& alias) { return index[spec.find(alias.second)] < 0; });
  Table<Piece> pieces;
  for (Piece piece : layout->pieces()) {
    if (index[piece.tensor] < 0) continue;
    piece.tensor = index[piece.tensor];
    pieces.push_back(piece);
  }
  return with_pieces(*layout, std::make_shared<const Spec>(std::move(tensors), std::move(aliases)),
                     std::move(pieces));
}

LayoutPtr common_part(const LayoutPtr& layout, const LayoutPtr& other) {
  const auto by_rank = [](const Piece& a, const Piece& b) { return a.rank < b.rank; };
  Table<Piece> kept;
  for (int32_t tensor = 0; tensor < static_cast<int32_t>(layout->spec().tensors().size());
       ++tensor) {
    const TensorInfo& info = layout->spec().tensors()[tensor];
    const int32_t same = other->spec().find(info.name);
    ensure(same >= 0, "layouts hold different tensors", [&] { return info.name; });
    const std::span<const Piece> held = other->pieces_of(same);
    std::vector<Box> missing{Box(info.shape)};
    for (const Piece& piece : layout->pieces_of(tensor)) {
      const auto [begin, end] = std::equal_range(held.begin(), held.end(), piece, by_rank);
      for (auto own = begin; own != end; ++own) {
        Piece part = piece;
        part.box = intersect(piece.box, own->box);
        if (part.box.empty()) continue;
        part.place = place_within(piece.place, piece.box, part.box);
        subtract_from(missing, part.box);
        kept.push_back(part);
      }
    }
    std::erase_if(missing, [](const Box& box) { return box.empty(); });
    if (!missing.empty()) return nullptr;
  }
  return with_pieces(*layout, layout->spec_ptr(), std::move(kept));
}

LayoutPtr without_copies(const LayoutPtr& layout) {
  const Roles roles(*layout);
  const auto num_tensors = static_cast<int32_t>(layout->spec().tensors().size());
  Table<Piece> kept;
  for (int32_t tensor = 0; tensor < num_tensors; ++tensor) {
    std::map<std::pair<Dims, Dims>, Table<Piece>> boxes;
    for (const Piece& piece : layout->pieces_of(tensor))
      boxes[{piece.box.start, piece.box.size}].push_back(piece);
    for (const auto& [box, pieces] : boxes) {
      std::vector<int32_t> found;  // roles, in the order of their first ranks
      for (const Piece& piece : pieces) {
        if (std::find(found.begin(), found.end(), roles.of(piece.rank)) != found.end()) continue;
        roles.check_same_tensors(tensor, pieces.front().rank, piece.rank);
        found.push_back(roles.of(piece.rank));
      }
      const int32_t chosen = found[tensor % found.size()];
      for (const Piece& piece : pieces)
        if (roles.of(piece.rank) == chosen) kept.push_back(piece);
    }
  }
  return with_pieces(*layout, layout->spec_ptr(), std::move(kept));
}

}  // namespace hybridengine
