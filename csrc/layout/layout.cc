#include "layout/layout.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "base/error.h"
#include "base/hash.h"

namespace hybridengine {
namespace {

void check_indices(const Spec& spec, const std::vector<Rank>& ranks, size_t num_names,
                   const Table<LocalTensor>& locals, const Table<Piece>& pieces) {
  const auto fits = [](int64_t index, size_t count) {
    return index >= 0 && index < static_cast<int64_t>(count);
  };
  for (size_t i = 0; i < locals.size(); ++i) {
    if (!std::binary_search(ranks.begin(), ranks.end(), locals[i].rank) ||
        !fits(locals[i].name, num_names) || (i > 0 && locals[i].rank < locals[i - 1].rank))
      throw UsageError("a local tensor has a rank or name that its layout lacks",
                       str_cat("rank ", locals[i].rank), "");
  }
  for (const Piece& piece : pieces) {
    if (!fits(piece.tensor, spec.tensors().size()) || !fits(piece.local, locals.size()) ||
        locals[piece.local].rank != piece.rank)
      throw UsageError("a piece has a tensor, local tensor or rank that its layout lacks",
                       str_cat("tensor ", piece.tensor, ", local ", piece.local), "");
    const TensorInfo& info = spec.tensors()[piece.tensor];
    if (!Box(info.shape).contains(piece.box))
      throw UsageError("a piece lies outside of its tensor",
                       str_cat("rank ", piece.rank, ", '", info.name, "' ", info.shape.to_string()),
                       "");
  }
}

bool in_order(const Piece& a, const Piece& b) {
  return std::tie(a.tensor, a.rank, a.local) < std::tie(b.tensor, b.rank, b.local);
}

/// Equal for tensors of one kind, and rarely for others.
uint64_t kind_hash(const TensorInfo& info, std::span<const Piece> pieces) {
  uint64_t hash = static_cast<uint64_t>(info.dtype);
  const auto mix = [&](uint64_t number) {
    hash = (hash ^ number) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  };
  for (int dim = 0; dim < info.shape.ndim; ++dim) mix(info.shape.size[dim]);
  for (const Piece& piece : pieces) {
    mix(piece.rank);
    for (int dim = 0; dim < piece.box.ndim; ++dim) {
      mix(piece.box.start[dim]);
      mix(piece.box.size[dim]);
    }
  }
  return hash;
}

bool same_boxes(std::span<const Piece> a, std::span<const Piece> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Piece& x, const Piece& y) {
    return x.rank == y.rank && x.box == y.box;
  });
}

}  // namespace

Layout::Layout(std::string text, SpecPtr spec, std::vector<Rank> ranks,
               std::vector<std::string> names, Table<LocalTensor> locals, Table<Piece> pieces)
    : text_(std::move(text)),
      spec_(std::move(spec)),
      ranks_(std::move(ranks)),
      names_(std::move(names)),
      locals_(std::move(locals)),
      pieces_(std::move(pieces)) {
  check_ranks(ranks_);
  check_indices(*spec_, ranks_, names_.size(), locals_, pieces_);
  std::erase_if(pieces_, [](const Piece& piece) { return piece.box.empty(); });
  if (!std::is_sorted(pieces_.begin(), pieces_.end(), in_order))
    std::stable_sort(pieces_.begin(), pieces_.end(), in_order);
  piece_begin_.assign(spec_->tensors().size() + 1, 0);
  for (const Piece& piece : pieces_) ++piece_begin_[piece.tensor + 1];
  for (size_t i = 1; i < piece_begin_.size(); ++i) piece_begin_[i] += piece_begin_[i - 1];
  index_locals();
  find_kinds();
}

void Layout::check_ranks(const std::vector<Rank>& ranks) {
  if (ranks.empty() || !std::is_sorted(ranks.begin(), ranks.end()) || ranks.front() < 0 ||
      ranks.back() >= kMaxRanks || std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end())
    throw UsageError("the ranks of a layout are not usable", str_cat(ranks.size(), " ranks"),
                     str_cat("Use at least one, all different, from 0 to ", kMaxRanks - 1, "."));
}

void Layout::index_locals() {
  local_begin_.reserve(ranks_.size() + 1);
  auto next = locals_.begin();
  for (const Rank rank : ranks_) {
    next = std::partition_point(next, locals_.end(),
                                [&](const LocalTensor& local) { return local.rank < rank; });
    local_begin_.push_back(static_cast<int32_t>(next - locals_.begin()));
  }
  local_begin_.push_back(static_cast<int32_t>(locals_.size()));
}

void Layout::find_kinds() {
  const auto num_tensors = static_cast<int32_t>(spec_->tensors().size());
  std::unordered_multimap<uint64_t, int32_t> examples;  // a tensor of each kind, by hash
  kinds_.reserve(num_tensors);
  for (int32_t tensor = 0; tensor < num_tensors; ++tensor) {
    const TensorInfo& info = spec_->tensors()[tensor];
    const uint64_t hash = kind_hash(info, pieces_of(tensor));
    auto [match, end] = examples.equal_range(hash);
    const auto same = [&](int32_t example) {
      const TensorInfo& other = spec_->tensors()[example];
      return other.shape == info.shape && other.dtype == info.dtype &&
             same_boxes(pieces_of(example), pieces_of(tensor));
    };
    while (match != end && !same(match->second)) ++match;
    if (match == end) examples.emplace(hash, tensor);
    kinds_.push_back(match == end ? num_kinds_++ : kinds_[match->second]);
  }
}

std::shared_ptr<const Layout> Layout::partial(Op op) const {
  for (const TensorInfo& info : spec_->tensors()) check_reducible(op, info.dtype);
  auto result = std::make_shared<Layout>(*this);
  result->op_ = op;
  result->text_ = str_cat("partial(", op_name(op), ", ", text_, ")");
  return result;
}

bool Layout::has_rank(Rank rank) const {
  return std::binary_search(ranks_.begin(), ranks_.end(), rank);
}

std::pair<int32_t, int32_t> Layout::locals_of(Rank rank) const {
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  if (found == ranks_.end() || *found != rank) return {0, 0};
  const size_t index = static_cast<size_t>(found - ranks_.begin());
  return {local_begin_[index], local_begin_[index + 1]};
}

std::span<const Piece> Layout::pieces_of(int32_t tensor) const {
  return std::span(pieces_).subspan(piece_begin_[tensor],
                                    piece_begin_[tensor + 1] - piece_begin_[tensor]);
}

int64_t Layout::num_bytes(Rank rank) const {
  const auto [begin, end] = locals_of(rank);
  int64_t bytes = 0;
  for (int32_t i = begin; i < end; ++i)
    bytes += locals_[i].shape.num_elems() * static_cast<int64_t>(dtype_bytes(locals_[i].dtype));
  return bytes;
}

std::string Layout::to_string(Rank rank) const {
  const auto [begin, end] = locals_of(rank);
  std::vector<std::string> lines(end - begin);
  for (const Piece& piece : pieces_)
    if (piece.local >= begin && piece.local < end)
      lines[piece.local - begin] +=
          str_cat("  ", spec_->tensors()[piece.tensor].name, " ", piece.box.to_string(), " at ",
                  piece.place.offset_elems, "\n");
  std::string text = str_cat("rank ", rank, " of ", text_, "\n");
  for (int32_t i = begin; i < end; ++i)
    text += str_cat(name_of(locals_[i]), " ", locals_[i].shape.to_string(), " ",
                    dtype_name(locals_[i].dtype), "\n", lines[i - begin]);
  return text;
}

bool Layout::operator==(const Layout& other) const {
  return op_ == other.op_ && *spec_ == *other.spec_ && ranks_ == other.ranks_ &&
         names_ == other.names_ && locals_ == other.locals_ && pieces_ == other.pieces_;
}

}  // namespace hybridengine
