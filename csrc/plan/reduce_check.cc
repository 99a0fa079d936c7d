// The proof of a plan from a partial layout, and its bound, apart from the planner.
#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "plan/plan.h"

namespace hybridengine {
namespace {

std::string describe(const Plan& plan, const Move& move) {
  return str_cat("'", plan.dst().spec().tensors()[move.tensor].name, "' ", move.box.to_string(),
                 " from rank ", move.src, " to rank ", move.dst, ", step ", int{move.step});
}

int64_t num_elems(const std::vector<Box>& boxes) {
  int64_t elems = 0;
  for (const Box& box : boxes) elems += box.num_elems();
  return elems;
}

/// The moves into one destination piece.
struct Incoming {
  std::map<std::vector<int64_t>, std::vector<const Move*>> folded;  // step 0, by box
  std::vector<const Move*> copied;                                  // step 1
};

std::vector<int64_t> key_of(const Box& box) {
  std::vector<int64_t> key(box.start.begin(), box.start.begin() + box.ndim);
  key.insert(key.end(), box.size.begin(), box.size.begin() + box.ndim);
  return key;
}

std::vector<Incoming> by_piece(const Plan& plan) {
  std::vector<Incoming> pieces(plan.dst().pieces().size());
  for (const Move& move : plan.moves()) {
    if (move.step == 0)
      pieces[move.dst_piece].folded[key_of(move.box)].push_back(&move);
    else
      pieces[move.dst_piece].copied.push_back(&move);
  }
  return pieces;
}

void check_ends(const Plan& plan, const Move& move) {
  const Piece& src = plan.src_pieces(move)[move.src_piece];
  const Piece& dst = plan.dst().pieces()[move.dst_piece];
  const Layout& from = move.step == 0 ? plan.src() : plan.dst();
  const TensorInfo& info = plan.dst().spec().tensors()[move.tensor];
  const TensorInfo& src_info = from.spec().tensors()[src.tensor];
  ensure(src.rank == move.src && dst.rank == move.dst && dst.tensor == move.tensor &&
             src_info.name == info.name && src.box.contains(move.box) &&
             dst.box.contains(move.box) && !move.box.empty(),
         "a move does not fit its pieces", [&] { return describe(plan, move); });
  ensure(move.src_dtype == src_info.dtype && move.dst_dtype == info.dtype &&
             move.op == (move.step == 0 ? plan.src().op() : Op::kCopy),
         "a move has another element type or op than its ends",
         [&] { return describe(plan, move); });
}

/// Every contributor exactly once, whole.
void check_contributors(const Plan& plan, const std::vector<const Move*>& moves) {
  const Move& first = *moves.front();
  std::set<int32_t> expected, found;
  const int32_t tensor = plan.src().pieces()[first.src_piece].tensor;
  for (const Piece& piece : plan.src().pieces_of(tensor)) {
    const Box common = intersect(piece.box, first.box);
    ensure(common.empty() || common == first.box, "a move has a part of a contribution",
           [&] { return describe(plan, first); });
    if (!common.empty()) expected.insert(static_cast<int32_t>(&piece - plan.src().pieces().data()));
  }
  for (const Move* move : moves)
    ensure(found.insert(move->src_piece).second, "a contribution is taken twice",
           [&] { return describe(plan, *move); });
  ensure(found == expected, "a contribution is missing", [&] { return describe(plan, first); });
}

void check_covered(const Plan& plan, const Piece& piece, const Incoming& incoming) {
  std::vector<Box> missing{piece.box};
  int64_t elems = 0;
  const auto take = [&](const Box& box) {
    subtract_from(missing, box);
    elems += box.num_elems();
  };
  for (const auto& [unused, moves] : incoming.folded) take(moves.front()->box);
  for (const Move* move : incoming.copied) take(move->box);
  ensure(missing.empty() && elems == piece.box.num_elems(),
         "a destination byte is not written exactly once", [&] {
           return str_cat("'", plan.dst().spec().tensors()[piece.tensor].name, "' ",
                          piece.box.to_string(), " of rank ", piece.rank);
         });
}

/// What a move of step 1 reads has come out of step 0.
void check_owned(const Plan& plan, const Move& move, const Incoming& owner) {
  int64_t elems = 0;
  for (const auto& [unused, moves] : owner.folded)
    elems += intersect(moves.front()->box, move.box).num_elems();
  ensure(elems == move.box.num_elems(), "a move copies what its source does not own",
         [&] { return describe(plan, move); });
}

}  // namespace

void check_reducing_plan(const Plan& plan) {
  for (const Move& move : plan.moves()) check_ends(plan, move);
  const std::vector<Incoming> pieces = by_piece(plan);
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (const auto& [unused, moves] : pieces[i].folded) check_contributors(plan, moves);
    check_covered(plan, plan.dst().pieces()[i], pieces[i]);
    for (const Move* move : pieces[i].copied) check_owned(plan, *move, pieces[move->src_piece]);
  }
  for (const RankBytes& row : plan.certificate().ranks)
    ensure(row.received_bytes == row.bound_bytes, "a rank receives another amount than its bound",
           [&] {
             return str_cat("rank ", row.rank, ": ", row.received_bytes, " and ", row.bound_bytes,
                            " bytes");
           });
}

void bound_reducing(const Layout& src, const Layout& dst, const Table<Move>& moves,
                    const Pairing& pairing, std::vector<RankBytes>& rows) {
  std::map<Rank, RankBytes*> by_rank;
  for (RankBytes& row : rows) {
    row.needed_bytes = row.held_bytes = row.bound_bytes = 0;
    by_rank[row.rank] = &row;
  }
  std::vector<std::vector<Box>> owned;  // by destination piece: what nobody else makes
  for (const Piece& piece : dst.pieces()) owned.push_back({piece.box});
  for (const Move& move : moves)
    if (move.step == 1) subtract_from(owned[move.dst_piece], move.box);
  for (size_t i = 0; i < owned.size(); ++i) {
    const Piece& piece = dst.pieces()[i];
    RankBytes& row = *by_rank.at(piece.rank);
    const int32_t src_tensor = pairing.src_tensor[piece.tensor];
    const auto dst_bytes =
        static_cast<int64_t>(dtype_bytes(dst.spec().tensors()[piece.tensor].dtype));
    const auto src_bytes =
        static_cast<int64_t>(dtype_bytes(src.spec().tensors()[src_tensor].dtype));
    row.needed_bytes += piece.box.num_elems() * dst_bytes;
    std::vector<Box> missing{piece.box};  // on this rank
    for (const Piece& other : dst.pieces_of(piece.tensor))
      if (other.rank == piece.rank)
        for (const Box& box : owned[&other - dst.pieces().data()]) subtract_from(missing, box);
    row.bound_bytes += num_elems(missing) * dst_bytes;
    for (const Piece& contribution : src.pieces_of(src_tensor))
      if (contribution.rank != piece.rank)
        for (const Box& box : owned[i])
          row.bound_bytes += intersect(contribution.box, box).num_elems() * src_bytes;
  }
}

}  // namespace hybridengine
