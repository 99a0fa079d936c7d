#include "layout/update.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace hybridengine {
namespace {

constexpr char kTraining[] = "training:";
constexpr char kGeneration[] = "generation:";

/// Joins pieces of several layouts, whose tensors and locals get a prefix.
class Joined {
 public:
  /// Returns what to add to an index into locals of `from`.
  int32_t add_locals(const Layout& from, const char* prefix) {
    const auto first = static_cast<int32_t>(locals_.size());
    for (const LocalTensor& local : from.locals()) {
      locals_.push_back(local);
      locals_.back().name = static_cast<int32_t>(names_.size());
      names_.push_back(prefix + from.name_of(local));
    }
    return first;
  }

  void add_ranks(const Layout& from) {
    ranks_.insert(ranks_.end(), from.ranks().begin(), from.ranks().end());
  }

  void add_piece(Piece piece, int32_t tensor, int32_t first_local, Dtype dtype) {
    piece.tensor = tensor;
    piece.local += first_local;
    locals_[piece.local].dtype = dtype;
    pieces_.push_back(piece);
  }

  /// Locals without pieces are dropped.
  LayoutPtr finish(std::string text, SpecPtr spec) {
    std::sort(ranks_.begin(), ranks_.end());
    ranks_.erase(std::unique(ranks_.begin(), ranks_.end()), ranks_.end());
    std::vector<bool> used(locals_.size());
    for (const Piece& piece : pieces_) used[piece.local] = true;
    std::vector<int32_t> order;
    for (int32_t i = 0; i < static_cast<int32_t>(locals_.size()); ++i)
      if (used[i]) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return locals_[a].rank < locals_[b].rank; });
    std::vector<int32_t> index(locals_.size());
    Table<LocalTensor> locals;
    for (const int32_t i : order) {
      index[i] = static_cast<int32_t>(locals.size());
      locals.push_back(locals_[i]);
    }
    for (Piece& piece : pieces_) piece.local = index[piece.local];
    return std::make_shared<const Layout>(std::move(text), std::move(spec), std::move(ranks_),
                                          std::move(names_), std::move(locals), std::move(pieces_));
  }

 private:
  std::vector<Rank> ranks_;
  std::vector<std::string> names_;
  Table<LocalTensor> locals_;
  Table<Piece> pieces_;
};

class Updater {
 public:
  Updater(const LayoutPtr& owners, const LayoutPtr& train, const LayoutPtr& gen)
      : owners_(*owners), train_(*train), gen_(*gen) {
    std::vector<TensorInfo> tensors;
    for (const auto& [layout, prefix] : {std::pair(&train_, kTraining), {&gen_, kGeneration}})
      for (TensorInfo info : layout->spec().tensors()) {
        info.name = prefix + info.name;
        tensors.push_back(std::move(info));
      }
    spec_ = std::make_shared<const Spec>(std::move(tensors),
                                         std::vector<std::pair<std::string, std::string>>());
  }

  UpdateLayouts run() {
    const LayoutPtr dst = make_dst();
    return {make_src(*dst), dst};
  }

 private:
  LayoutPtr make_dst() {
    Joined joined;
    joined.add_ranks(train_);
    joined.add_ranks(gen_);
    const int32_t train_locals = joined.add_locals(train_, kTraining);
    const int32_t gen_locals = joined.add_locals(gen_, kGeneration);
    for (const Piece& piece : train_.pieces())
      joined.add_piece(piece, piece.tensor, train_locals, dtype_of(piece.tensor));
    std::vector<Box> rest;
    for (const Piece& piece : gen_.pieces()) {
      const int32_t tensor = num_trained() + piece.tensor;
      rest.assign(1, piece.box);
      take_out_trained(piece, rest);
      for (const Box& box : rest) {
        Piece part = piece;
        part.box = box;
        part.place = place_within(piece.place, piece.box, box);
        joined.add_piece(part, tensor, gen_locals, dtype_of(tensor));
      }
    }
    return joined.finish(str_cat(train_.text(), " and ", gen_.text()), spec_);
  }

  LayoutPtr make_src(const Layout& dst) {
    Joined joined;
    joined.add_ranks(owners_);
    for (const auto& [layout, prefix] : {std::pair(&train_, kTraining), {&gen_, kGeneration}}) {
      const int32_t first = joined.add_locals(owners_, prefix);
      for (const Piece& piece : owners_.pieces()) {
        const std::string& name = owners_.spec().tensors()[piece.tensor].name;
        const int32_t tensor = spec_->find(prefix + name);
        ensure(tensor >= 0, "owners hold a tensor that nobody else has", [&] { return name; });
        if (!dst.pieces_of(tensor).empty())
          joined.add_piece(piece, tensor, first, dtype_of(tensor));
      }
    }
    return joined.finish(owners_.text(), spec_);
  }

  /// Takes out of `rest` what the rank of a generation piece can copy from its training tensors.
  void take_out_trained(const Piece& piece, std::vector<Box>& rest) const {
    const TensorInfo& info = gen_.spec().tensors()[piece.tensor];
    const int32_t tensor = train_.spec().find(info.name);
    ensure(tensor >= 0, "a tensor is generated with and not trained", [&] { return info.name; });
    const Dtype trained = dtype_of(tensor);
    const int32_t owned = owners_.spec().find(info.name);
    if (trained != info.dtype && trained != owners_.spec().tensors()[owned].dtype) return;
    const auto by_rank = [](const Piece& a, const Piece& b) { return a.rank < b.rank; };
    const std::span<const Piece> held = train_.pieces_of(tensor);
    const auto [begin, end] = std::equal_range(held.begin(), held.end(), piece, by_rank);
    for (auto own = begin; own != end; ++own) subtract_from(rest, own->box);
  }

  int32_t num_trained() const { return static_cast<int32_t>(train_.spec().tensors().size()); }
  Dtype dtype_of(int32_t tensor) const { return spec_->tensors()[tensor].dtype; }

  const Layout& owners_;
  const Layout& train_;
  const Layout& gen_;
  SpecPtr spec_;
};

}  // namespace

UpdateLayouts make_update(const LayoutPtr& owners, const LayoutPtr& train, const LayoutPtr& gen) {
  return Updater(owners, train, gen).run();
}

}  // namespace hybridengine
