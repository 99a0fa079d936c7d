// The proof of a plan, apart from the planner.
#include <algorithm>

#include "base/error.h"
#include "plan/plan.h"

namespace hybridengine {
namespace {

std::string describe(const Plan& plan, const Move& move) {
  return str_cat("'", plan.dst().spec().tensors()[move.tensor].name, "' ", move.box.to_string(),
                 " from rank ", move.src, " to rank ", move.dst);
}

void check_ends(const Plan& plan, const Move& move) {
  const Piece& src = plan.src().pieces()[move.src_piece];
  const Piece& dst = plan.dst().pieces()[move.dst_piece];
  const TensorInfo& info = plan.dst().spec().tensors()[move.tensor];
  const TensorInfo& src_info = plan.src().spec().tensors()[src.tensor];
  ensure(src.rank == move.src && dst.rank == move.dst, "a move names another rank than its pieces",
         [&] { return describe(plan, move); });
  ensure(dst.tensor == move.tensor && src_info.name == info.name, "a move changes its tensor",
         [&] { return describe(plan, move); });
  ensure(src.box.contains(move.box) && dst.box.contains(move.box), "a move leaves its pieces",
         [&] { return describe(plan, move); });
  ensure(!move.box.empty(), "a move is empty", [&] { return describe(plan, move); });
  ensure(move.src_dtype == src_info.dtype && move.dst_dtype == info.dtype,
         "a move has another element type than its ends", [&] { return describe(plan, move); });
  ensure(move.step == 0 && move.op == Op::kCopy, "a plan without contributions reduces",
         [&] { return describe(plan, move); });
}

/// `moves` are those of one destination piece.
void check_piece(const Plan& plan, const Piece& piece, std::span<const Move* const> moves) {
  if (moves.size() > 1) {
    std::vector<Box> boxes;
    for (const Move* move : moves) boxes.push_back(move->box);
    const auto overlap = find_overlap(piece.box, boxes);
    ensure(!overlap, "a destination byte is written twice", [&] {
      return describe(plan, *moves[overlap->first]) + " and " +
             describe(plan, *moves[overlap->second]);
    });
  }
  int64_t elems = 0;
  for (const Move* move : moves) elems += move->box.num_elems();
  ensure(elems == piece.box.num_elems(), "a destination byte is never written", [&] {
    return str_cat("'", plan.dst().spec().tensors()[piece.tensor].name, "' ", piece.box.to_string(),
                   " of rank ", piece.rank);
  });
}

}  // namespace

void Plan::check() const {
  if (reduces()) return check_reducing_plan(*this);
  std::vector<const Move*> by_piece;
  by_piece.reserve(moves_.size());
  for (const Move& move : moves_) {
    check_ends(*this, move);
    by_piece.push_back(&move);
  }
  std::stable_sort(by_piece.begin(), by_piece.end(),
                   [](const Move* a, const Move* b) { return a->dst_piece < b->dst_piece; });
  size_t begin = 0;
  for (int32_t piece = 0; piece < static_cast<int32_t>(dst_->pieces().size()); ++piece) {
    size_t end = begin;
    while (end < by_piece.size() && by_piece[end]->dst_piece == piece) ++end;
    check_piece(*this, dst_->pieces()[piece], std::span(by_piece).subspan(begin, end - begin));
    begin = end;
  }
  for (const RankBytes& row : certificate_.ranks)
    ensure(row.received_bytes == row.bound_bytes, "a rank receives another amount than its bound",
           [&] {
             return str_cat("rank ", row.rank, ": ", row.received_bytes, " and ", row.bound_bytes,
                            " bytes");
           });
}

}  // namespace hybridengine
