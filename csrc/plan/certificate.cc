#include "plan/certificate.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "plan/plan.h"

namespace hybridengine {
namespace {

std::vector<RankBytes> all_ranks(const Layout& src, const Layout& dst) {
  std::vector<Rank> ranks;
  std::set_union(src.ranks().begin(), src.ranks().end(), dst.ranks().begin(), dst.ranks().end(),
                 std::back_inserter(ranks));
  std::vector<RankBytes> rows(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) rows[i].rank = ranks[i];
  return rows;
}

/// The rows by rank, for lookups in a long loop.
class RowIndex {
 public:
  explicit RowIndex(std::vector<RankBytes>& rows) : rows_(rows) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].rank >= static_cast<Rank>(index_.size())) index_.resize(rows[i].rank + 1, -1);
      index_[rows[i].rank] = static_cast<int32_t>(i);
    }
  }
  RankBytes& of(Rank rank) const {
    const bool known = rank >= 0 && rank < static_cast<Rank>(index_.size()) && index_[rank] >= 0;
    ensure(known, "a move names a rank of neither layout", [&] { return str_cat(rank); });
    return rows_[index_[rank]];
  }

 private:
  std::vector<RankBytes>& rows_;
  std::vector<int32_t> index_;
};

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
  std::vector<Box> missing{box};
  for (auto piece = begin; piece != end; ++piece) subtract_from(missing, piece->box);
  int64_t held = box.num_elems();
  for (const Box& part : missing) held -= part.num_elems();
  return held;
}

Certificate certify(const Layout& src, const Layout& dst, const Table<Move>& moves) {
  return certify(src, dst, moves, pair_tensors(src, dst));
}

Certificate certify(const Layout& src, const Layout& dst, const Table<Move>& moves,
                    const Pairing& pairing) {
  Certificate certificate{all_ranks(src, dst), {}};
  const RowIndex rows(certificate.ranks);
  for (const PairKind& kind : pairing.kinds) {
    const Dtype src_dtype = src.spec().tensors()[kind.src_tensor].dtype;
    const Dtype dst_dtype = dst.spec().tensors()[kind.dst_tensor].dtype;
    const auto bytes = static_cast<int64_t>(dtype_bytes(wire_dtype(src_dtype, dst_dtype)));
    for (const Piece& piece : dst.pieces_of(kind.dst_tensor)) {
      RankBytes& row = rows.of(piece.rank);
      const int64_t held = held_elems(src, kind.src_tensor, piece.rank, piece.box);
      row.needed_bytes += piece.box.num_elems() * bytes * kind.count;
      row.held_bytes += held * bytes * kind.count;
    }
    for (const Piece& piece : src.pieces_of(kind.src_tensor))
      certificate.senders.push_back(piece.rank);
  }
  for (RankBytes& row : certificate.ranks) row.bound_bytes = row.needed_bytes - row.held_bytes;
  if (src.op() != Op::kCopy) bound_reducing(src, dst, moves, pairing, certificate.ranks);
  for (const Move& move : moves) {
    if (move.local()) continue;
    const int64_t bytes = move.num_bytes();
    rows.of(move.dst).received_bytes += bytes;
    rows.of(move.src).sent_bytes += bytes;
  }
  std::vector<Rank>& senders = certificate.senders;
  if (src.op() != Op::kCopy)
    for (const Move& move : moves)
      if (move.step == 1 && (senders.empty() || senders.back() != move.src))
        senders.push_back(move.src);
  std::sort(senders.begin(), senders.end());
  senders.erase(std::unique(senders.begin(), senders.end()), senders.end());
  return certificate;
}

}  // namespace hybridengine
