#include "plan/pattern.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "layout/owners.h"

namespace hybridengine {
namespace {

[[noreturn]] void refuse_missing(const Layout& src, const Layout& dst, int32_t tensor,
                                 const Box& box) {
  throw UsageError(
      "no source rank holds a part of a tensor",
      str_cat("'", dst.spec().tensors()[tensor].name, "' ", box.to_string(), " of ", src.text()),
      "");
}

/// Cuts destination boxes along sources.
class Cutter {
 public:
  explicit Cutter(const std::vector<Holding>& sources) : sources_(sources) {}

  /// The sources are disjoint: each has at most one part of a box.
  std::vector<Slice> along_all(const Box& whole) {
    std::vector<Slice> cuts;
    for (int32_t i = 0; i < static_cast<int32_t>(sources_.size()); ++i) {
      const Box common = intersect(whole, sources_[i].box);
      if (!common.empty()) cuts.push_back({common, i});
    }
    return cuts;
  }

  /// The sources may overlap: those in `own` come first, the others as they are.
  std::vector<Slice> in_turn(const Box& whole, const std::vector<int32_t>& own) {
    std::vector<Slice> cuts;
    missing_.assign(1, whole);
    for (const int32_t i : own) take_out(i, cuts);
    for (int32_t i = 0; i < static_cast<int32_t>(sources_.size()) && !missing_.empty(); ++i)
      take_out(i, cuts);
    return cuts;
  }

 private:
  void take_out(int32_t source, std::vector<Slice>& cuts) {
    next_.clear();
    for (const Box& box : missing_) {
      const Box common = intersect(box, sources_[source].box);
      if (common.empty()) {
        next_.push_back(box);
        continue;
      }
      cuts.push_back({common, source});
      subtract(box, common, next_);
    }
    missing_.swap(next_);
  }

  const std::vector<Holding>& sources_;
  std::vector<Box> missing_, next_;
};

void check_covered(const Layout& src, const Layout& dst, int32_t tensor, const Box& whole,
                   const std::vector<Slice>& cuts) {
  int64_t elems = 0;
  for (const Slice& cut : cuts) elems += cut.box.num_elems();
  if (elems == whole.num_elems()) return;
  std::vector<Box> missing{whole};
  for (const Slice& cut : cuts) subtract_from(missing, cut.box);
  refuse_missing(src, dst, tensor, missing.front());
}

/// By rank, the sources that have a part of `box`.
std::vector<int32_t> held_by(const std::vector<Holding>& sources, const HolderSets& sets, Rank rank,
                             const Box& box) {
  std::vector<int32_t> held;
  for (int32_t i = 0; i < static_cast<int32_t>(sources.size()); ++i)
    if (sets.contains(sources[i].set, rank) && !intersect(sources[i].box, box).empty())
      held.push_back(i);
  return held;
}

/// Contributions are counted by rank.
void check_once(const Layout& src, int32_t tensor) {
  const std::span<const Piece> pieces = src.pieces_of(tensor);
  for (size_t i = 1; i < pieces.size(); ++i)
    for (size_t j = i; j-- > 0 && pieces[j].rank == pieces[i].rank;)
      if (!intersect(pieces[i].box, pieces[j].box).empty())
        throw UsageError("a rank contributes twice to one element",
                         str_cat("'", src.spec().tensors()[tensor].name, "' ",
                                 pieces[i].box.to_string(), " on rank ", pieces[i].rank),
                         "Leave one of its local tensors out of the layout.");
}

}  // namespace

int64_t Pattern::begin_bytes(int32_t set, int32_t ordinal, const Slice& cut) const {
  const auto found = std::lower_bound(piece_demands.begin(), piece_demands.end(), set,
                                      [](const PieceDemand& a, int32_t b) { return a.set < b; });
  // Of a set without a choice all goes to one rank, wherever it lies.
  if (found == piece_demands.end() || found->set != set) return 0;
  return found->begin_bytes[ordinal] + cut.offset_bytes;
}

std::vector<Holding> find_sources(const Layout& src, int32_t tensor, HolderSets& sets) {
  const std::span<const Piece> pieces = src.pieces_of(tensor);
  std::vector<Holding> sources = find_holdings(pieces);
  for (Holding& source : sources) source.set = sets.index_of(ranks_of(pieces, source));
  return sources;
}

Pattern make_copied(const Layout& src, const Layout& dst, const PairKind& kind, HolderSets& sets) {
  const std::span<const Piece> wanted = dst.pieces_of(kind.dst_tensor);
  const TensorInfo& info = dst.spec().tensors()[kind.dst_tensor];
  const Dtype src_dtype = src.spec().tensors()[kind.src_tensor].dtype;
  Pattern pattern;
  pattern.demands.elem_bytes = static_cast<int64_t>(dtype_bytes(wire_dtype(src_dtype, info.dtype)));
  pattern.sources = find_sources(src, kind.src_tensor, sets);
  std::vector<Box> boxes;
  for (const Holding& source : pattern.sources) boxes.push_back(source.box);
  const bool overlap = find_overlap(Box(info.shape), boxes).has_value();
  Cutter cutter(pattern.sources);
  std::map<std::tuple<Dims, Dims, std::vector<int32_t>>, int32_t> index;
  for (const Piece& piece : wanted) {
    std::vector<int32_t> own;
    if (overlap) own = held_by(pattern.sources, sets, piece.rank, piece.box);
    const auto [entry, fresh] = index.try_emplace({piece.box.start, piece.box.size, own},
                                                  static_cast<int32_t>(pattern.cuttings.size()));
    pattern.cutting_of.push_back(entry->second);
    if (!fresh) continue;
    pattern.cuttings.push_back(overlap ? cutter.in_turn(piece.box, own)
                                       : cutter.along_all(piece.box));
    check_covered(src, dst, kind.dst_tensor, piece.box, pattern.cuttings.back());
  }
  count_demands(pattern, wanted, sets);
  return pattern;
}

Pattern make_combined(const Layout& src, const Layout& dst, const PairKind& kind,
                      HolderSets& sets) {
  check_once(src, kind.src_tensor);
  Pattern pattern;
  pattern.demands.elem_bytes =
      static_cast<int64_t>(dtype_bytes(dst.spec().tensors()[kind.dst_tensor].dtype));
  pattern.sources = find_holdings(src.pieces_of(kind.src_tensor));
  pattern.owned = owned_holdings(dst, kind.dst_tensor, sets, pattern.demands);
  return pattern;
}

void count_demands(Pattern& pattern, std::span<const Piece> pieces, const HolderSets& sets) {
  std::map<int32_t, int64_t> asked;  // bytes by set
  for (const Holding& source : pattern.sources) asked.emplace(source.set, 0);
  std::vector<std::map<int32_t, int64_t>> by_cutting(pattern.cuttings.size());
  for (size_t i = 0; i < pattern.cuttings.size(); ++i)
    for (Slice& cut : pattern.cuttings[i]) {
      int64_t& bytes = by_cutting[i][pattern.sources[cut.source].set];
      cut.offset_bytes = bytes;
      bytes += cut.box.num_elems() * pattern.demands.elem_bytes;
    }
  pattern.piece_demands.clear();
  for (const auto& [set, unused] : asked)
    if (sets.ranks(set).size() > 1)
      pattern.piece_demands.push_back({set, std::vector<int64_t>(pieces.size(), 0)});
  for (size_t ordinal = 0; ordinal < pieces.size(); ++ordinal) {
    for (PieceDemand& demand : pattern.piece_demands)
      demand.begin_bytes[ordinal] = asked[demand.set];
    for (const auto& [set, bytes] : by_cutting[pattern.cutting_of[ordinal]])
      if (!sets.contains(set, pieces[ordinal].rank)) asked[set] += bytes;
  }
  pattern.demands.sets.clear();
  for (const auto& [set, bytes] : asked)
    if (bytes > 0) pattern.demands.sets.push_back({set, bytes});
}

std::vector<Box> parts_of(const Pattern& pattern, const Box& owned) {
  std::vector<Box> parts{owned}, next;
  for (const Holding& source : pattern.sources) {
    next.clear();
    for (const Box& part : parts) {
      const Box common = intersect(part, source.box);
      if (!common.empty()) next.push_back(common);
      if (common.empty())
        next.push_back(part);
      else if (common != part)
        subtract(part, common, next);
    }
    parts.swap(next);
  }
  return parts;
}

}  // namespace hybridengine
