// Routes: how patterns and choices become the moves of one rank.
//
// A *copied* plan has one step, from any holder of the source to the destination. A *combined* one
// has two, to the owner and from the owner on. Called by plan, certificate and the fuser.
#pragma once

#include <functional>
#include <vector>

#include "plan/plan.h"

namespace hybridengine {

/// Index of the first piece of a tensor.
inline int32_t first_piece(const Layout& layout, int32_t tensor) {
  return static_cast<int32_t>(layout.pieces_of(tensor).data() - layout.pieces().data());
}

/// Ordinals [first, second) of the pieces of `rank` among those of one tensor.
std::pair<int32_t, int32_t> ordinals_of(std::span<const Piece> pieces, Rank rank);

/// What `rank` sends, where `arrivals_only` is not set, receives and keeps. Not in order.
Table<Move> copied_moves(const Plan& plan, Rank rank, bool arrivals_only);
Table<Move> combined_moves(const Plan& plan, Rank rank);

/// A box that one rank combines.
struct OwnedPart {
  Rank owner = 0;
  int32_t dst_piece = 0;     // of the owner: where the result is made
  int64_t offset_elems = 0;  // in its local tensor
  Box box;
};

/// The parts of all owners, ordered as moves of step 0 are.
std::vector<OwnedPart> owned_parts(const Plan& plan);

/// What a holder serves of an owned box of one tensor.
struct OwnedShare {
  int32_t tensor = 0;
  int32_t holding = 0;  // index into Pattern::owned
  int32_t holder = 0;   // position in its set
  Box box;
};
void for_each_owned(const Plan& plan, const std::function<void(const OwnedShare&)>& found);

/// Calls found(number of boxes) for each demand of a copied plan that several holders serve.
void for_each_shared(const Plan& plan, const std::function<void(int64_t)>& found);

/// Brings moves into the order of Plan::moves_of.
void order_moves(const Layout& dst, Table<Move>& moves);

}  // namespace hybridengine
