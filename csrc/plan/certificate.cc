#include "plan/certificate.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "plan/plan.h"

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

std::vector<RankBytes> all_ranks(const Layout& src, const Layout& dst) {
  std::vector<Rank> ranks;
  std::set_union(src.ranks().begin(), src.ranks().end(), dst.ranks().begin(), dst.ranks().end(),
                 std::back_inserter(ranks));
  std::vector<RankBytes> rows(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) rows[i].rank = ranks[i];
  return rows;
}

RankBytes& row_of(std::vector<RankBytes>& rows, Rank rank) {
  const auto found = std::lower_bound(rows.begin(), rows.end(), rank,
                                      [](const RankBytes& row, Rank r) { return row.rank < r; });
  ensure(found != rows.end() && found->rank == rank, "a move names a rank of neither layout",
         [&] { return str_cat(rank); });
  return *found;
}

std::string gigabytes(int64_t bytes) {
  std::ostringstream text;
  text.precision(2);
  text << std::fixed;
  if (bytes >= 1'000'000'000)
    text << static_cast<double>(bytes) / 1e9 << " GB";
  else if (bytes >= 1'000'000)
    text << static_cast<double>(bytes) / 1e6 << " MB";
  else
    text << bytes << " B";
  return text.str();
}

}  // namespace

double Certificate::received_over_bound() const {
  double worst = 1;
  for (const RankBytes& row : ranks) {
    if (row.bound_bytes > 0)
      worst = std::max(
          worst, static_cast<double>(row.received_bytes) / static_cast<double>(row.bound_bytes));
    else if (row.received_bytes > 0)
      worst = std::numeric_limits<double>::infinity();
  }
  return worst;
}

double Certificate::sender_max_over_mean() const {
  int64_t most = 0, total = 0;
  for (const RankBytes& row : ranks) {
    most = std::max(most, row.sent_bytes);
    total += row.sent_bytes;
  }
  if (total == 0) return 1;
  return static_cast<double>(most) * static_cast<double>(senders.size()) /
         static_cast<double>(total);
}

int64_t Certificate::moved_bytes() const {
  int64_t bytes = 0;
  for (const RankBytes& row : ranks) bytes += row.received_bytes;
  return bytes;
}

std::string Certificate::to_string() const {
  std::string text;
  for (const RankBytes& row : ranks)
    text += str_cat("rank ", row.rank, ": received ", gigabytes(row.received_bytes), " of ",
                    gigabytes(row.bound_bytes), " bound, held ", gigabytes(row.held_bytes),
                    ", sent ", gigabytes(row.sent_bytes), "\n");
  return text;
}

int64_t held_elems(const Layout& layout, int32_t tensor, Rank rank, const Box& box) {
  const std::span<const Piece> pieces = layout.pieces_of(tensor);
  const auto begin = std::partition_point(pieces.begin(), pieces.end(),
                                          [&](const Piece& piece) { return piece.rank < rank; });
  const auto end = std::partition_point(begin, pieces.end(),
                                        [&](const Piece& piece) { return piece.rank == rank; });
  std::vector<Box> missing{box}, next;
  int64_t held = 0;
  for (auto piece = begin; piece != end; ++piece) {
    next.clear();
    for (const Box& part : missing) {
      const Box common = intersect(part, piece->box);
      held += common.num_elems();
      if (common.empty())
        next.push_back(part);
      else
        subtract(part, common, next);
    }
    missing.swap(next);
  }
  return held;
}

std::vector<int32_t> match_tensors(const Layout& layout, const Layout& other) {
  Differences differences;
  std::vector<int32_t> indices;
  for (const TensorInfo& wanted : other.spec().tensors()) {
    const int32_t index = layout.spec().find(wanted.name);
    indices.push_back(index);
    if (index < 0) {
      differences.add(str_cat("'", wanted.name, "' is only in ", other.text()));
      continue;
    }
    const TensorInfo& found = layout.spec().tensors()[index];
    const bool converts = is_floating(found.dtype) && is_floating(wanted.dtype);
    if (found.shape != wanted.shape || (found.dtype != wanted.dtype && !converts))
      differences.add(str_cat("tensor '", wanted.name, "' is ", found.shape.to_string(), " ",
                              dtype_name(found.dtype), " in ", layout.text(), " and ",
                              wanted.shape.to_string(), " ", dtype_name(wanted.dtype), " in ",
                              other.text()));
  }
  for (const TensorInfo& info : layout.spec().tensors())
    if (other.spec().find(info.name) < 0)
      differences.add(str_cat("'", info.name, "' is only in ", layout.text()));
  if (!differences.empty())
    throw UsageError("layouts differ", differences.text(),
                     "Both must be bound to the same model; pad, trim or rename in the mapping.");
  return indices;
}

Certificate certify(const Layout& src, const Layout& dst, const std::vector<Move>& moves) {
  const std::vector<int32_t> src_tensor = match_tensors(src, dst);
  Certificate certificate{all_ranks(src, dst), {}};
  for (const Piece& piece : dst.pieces()) {
    const Dtype src_dtype = src.spec().tensors()[src_tensor[piece.tensor]].dtype;
    const Dtype dst_dtype = dst.spec().tensors()[piece.tensor].dtype;
    const auto bytes = static_cast<int64_t>(dtype_bytes(wire_dtype(src_dtype, dst_dtype)));
    RankBytes& row = row_of(certificate.ranks, piece.rank);
    row.needed_bytes += piece.box.num_elems() * bytes;
    row.held_bytes += held_elems(src, src_tensor[piece.tensor], piece.rank, piece.box) * bytes;
  }
  for (const Move& move : moves) {
    if (move.local()) continue;
    row_of(certificate.ranks, move.dst).received_bytes += move.num_bytes();
    row_of(certificate.ranks, move.src).sent_bytes += move.num_bytes();
  }
  for (RankBytes& row : certificate.ranks) row.bound_bytes = row.needed_bytes - row.held_bytes;
  std::vector<bool> holds(certificate.ranks.empty() ? 0 : certificate.ranks.back().rank + 1);
  for (const Piece& piece : src.pieces()) holds[piece.rank] = true;
  for (const RankBytes& row : certificate.ranks)
    if (holds[row.rank]) certificate.senders.push_back(row.rank);
  return certificate;
}

}  // namespace hybridengine
