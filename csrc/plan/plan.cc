#include "plan/plan.h"

#include <algorithm>
#include <compare>

#include "base/error.h"
#include "base/hash.h"
#include "plan/route.h"

namespace hybridengine {

Plan::Plan(LayoutPtr src, LayoutPtr dst, Pairing pairing, std::vector<Pattern> patterns,
           HolderSets sets)
    : src_(std::move(src)),
      dst_(std::move(dst)),
      pairing_(std::move(pairing)),
      patterns_(std::move(patterns)),
      sets_(std::move(sets)) {
  const Counts counts = count_moves(*this);
  certificate_ = counts.certificate;
  num_moves_ = counts.num_moves;
}

LocalPlace Plan::src_place(const Move& move, const Box& box) const {
  const Piece& piece = src_pieces(move)[move.src_piece];
  return place_within(piece.place, piece.box, box);
}

LocalPlace Plan::dst_place(const Move& move, const Box& box) const {
  const Piece& piece = dst_->pieces()[move.dst_piece];
  return place_within(piece.place, piece.box, box);
}

Table<Move> Plan::moves_of(Rank rank) const {
  Table<Move> moves = reduces() ? combined_moves(*this, rank) : copied_moves(*this, rank, false);
  order_moves(*dst_, moves);
  return moves;
}

Table<Move> Plan::arrivals_of(Rank rank) const {
  if (reduces()) {
    Table<Move> moves = moves_of(rank);
    std::erase_if(moves, [&](const Move& move) { return move.dst != rank; });
    return moves;
  }
  Table<Move> moves = copied_moves(*this, rank, true);
  order_moves(*dst_, moves);
  return moves;
}

int64_t Plan::widest_elem_bytes() const {
  size_t widest = 1;
  for (const PairKind& kind : pairing_.kinds) {
    const Dtype from = src_->spec().tensors()[kind.src_tensor].dtype;
    const Dtype to = dst_->spec().tensors()[kind.dst_tensor].dtype;
    if (dst_->pieces_of(kind.dst_tensor).empty()) continue;
    widest = std::max(widest, reduces() ? std::max(dtype_bytes(from), dtype_bytes(to))
                                        : dtype_bytes(wire_dtype(from, to)));
  }
  return static_cast<int64_t>(widest);
}

std::string Plan::to_string() const {
  std::string text = str_cat(src_->text(), " -> ", dst_->text(), "\n", certificate_.to_string());
  for (size_t i = 0; i < patterns_.size(); ++i) {
    const PairKind& kind = pairing_.kinds[i];
    const TensorInfo& info = dst_->spec().tensors()[kind.dst_tensor];
    text += str_cat(kind.count, " x '", info.name, "' ", info.shape.to_string(), ": ",
                    dst_->pieces_of(kind.dst_tensor).size(), " destination pieces out of ",
                    patterns_[i].sources.size(), " source boxes\n");
  }
  return text;
}

std::pair<int32_t, int32_t> ordinals_of(std::span<const Piece> pieces, Rank rank) {
  const auto begin = std::partition_point(pieces.begin(), pieces.end(),
                                          [&](const Piece& piece) { return piece.rank < rank; });
  const auto end = std::partition_point(begin, pieces.end(),
                                        [&](const Piece& piece) { return piece.rank == rank; });
  return {static_cast<int32_t>(begin - pieces.begin()), static_cast<int32_t>(end - pieces.begin())};
}

namespace {

/// A move's place in the order among those of one step into one local tensor.
struct OrderKey {
  int64_t offset_elems = 0;
  Rank src = 0;
  int32_t src_piece = 0;
  int32_t index = 0;
  auto operator<=>(const OrderKey& other) const = default;
};

/// Local tensors are ordered by rank, so moves are counted into runs, by step and local tensor, and
/// each run is sorted by itself: they come nearly in order, and one sort of all would not see it.
Table<OrderKey> sorted_keys(const Layout& dst, const Table<Move>& moves) {
  const size_t num_locals = dst.locals().size();
  const auto run_of = [&](const Move& move, const Piece& piece) {
    return move.step * num_locals + piece.local;
  };
  std::vector<int32_t> ends(2 * num_locals + 1, 0);  // of runs; at first where they begin
  for (const Move& move : moves) ++ends[run_of(move, dst.pieces()[move.dst_piece]) + 1];
  for (size_t run = 1; run < ends.size(); ++run) ends[run] += ends[run - 1];
  Table<OrderKey> keys;
  resize_unwritten(keys, moves.size());
  for (size_t i = 0; i < moves.size(); ++i) {
    const Move& move = moves[i];
    const Piece& piece = dst.pieces()[move.dst_piece];
    keys[ends[run_of(move, piece)]++] = {
        place_within(piece.place, piece.box, move.box).offset_elems, move.src, move.src_piece,
        static_cast<int32_t>(i)};
  }
  int32_t begin = 0;
  for (const int32_t end : ends) {
    if (end - begin > 1) std::sort(keys.begin() + begin, keys.begin() + end);
    begin = end;
  }
  return keys;
}

}  // namespace

void order_moves(const Layout& dst, Table<Move>& moves) {
  const Table<OrderKey> keys = sorted_keys(dst, moves);
  Table<Move> ordered;
  resize_unwritten(ordered, moves.size());
  for (size_t i = 0; i < keys.size(); ++i) ordered[i] = moves[keys[i].index];
  moves.swap(ordered);
}

}  // namespace hybridengine
