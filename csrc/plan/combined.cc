// The route of contributions that are combined.
#include <algorithm>

#include "plan/route.h"

namespace hybridengine {
namespace {

class CombinedMoves {
 public:
  CombinedMoves(const Plan& plan, Rank rank) : plan_(plan), rank_(rank) {}

  Table<Move> run() {
    for_each_owned(plan_, [&](const OwnedShare& share) { add_share(share); });
    return std::move(moves_);
  }

 private:
  void add_share(const OwnedShare& share) {
    const Pattern& pattern = plan_.pattern_of(share.tensor);
    const Holding& holding = pattern.owned[share.holding];
    const int32_t owned_piece =
        first_piece(plan_.dst(), share.tensor) + holding.ordinals[share.holder];
    const Rank owner = plan_.dst().pieces()[owned_piece].rank;
    for (const Box& part : parts_of(pattern, share.box)) {
      add_contributions(share.tensor, owner, owned_piece, part);
      add_copies(share.tensor, owner, owned_piece, part);
    }
  }

  /// What this rank is not the owner of it has a part in only through pieces of its own.
  std::pair<int32_t, int32_t> range(std::span<const Piece> pieces, Rank owner) const {
    if (owner == rank_) return {0, static_cast<int32_t>(pieces.size())};
    return ordinals_of(pieces, rank_);
  }

  void add_contributions(int32_t tensor, Rank owner, int32_t owned_piece, const Box& part) {
    const int32_t src_tensor = plan_.pairing().src_tensor[tensor];
    const std::span<const Piece> pieces = plan_.src().pieces_of(src_tensor);
    const auto [begin, end] = range(pieces, owner);
    for (int32_t i = begin; i < end; ++i)
      if (pieces[i].box.contains(part))
        moves_.push_back({.tensor = tensor,
                          .src_piece = first_piece(plan_.src(), src_tensor) + i,
                          .dst_piece = owned_piece,
                          .src = pieces[i].rank,
                          .dst = owner,
                          .op = plan_.src().op(),
                          .src_dtype = plan_.src().spec().tensors()[src_tensor].dtype,
                          .dst_dtype = plan_.dst().spec().tensors()[tensor].dtype,
                          .box = part});
  }

  void add_copies(int32_t tensor, Rank owner, int32_t owned_piece, const Box& part) {
    const std::span<const Piece> pieces = plan_.dst().pieces_of(tensor);
    const Dtype dtype = plan_.dst().spec().tensors()[tensor].dtype;
    const int32_t first = first_piece(plan_.dst(), tensor);
    const auto [begin, end] = range(pieces, owner);
    for (int32_t i = begin; i < end; ++i) {
      const Box common = intersect(pieces[i].box, part);
      if (first + i == owned_piece || common.empty()) continue;
      moves_.push_back({.tensor = tensor,
                        .src_piece = owned_piece,
                        .dst_piece = first + i,
                        .src = owner,
                        .dst = pieces[i].rank,
                        .step = 1,
                        .src_dtype = dtype,
                        .dst_dtype = dtype,
                        .box = common});
    }
  }

  const Plan& plan_;
  const Rank rank_;
  Table<Move> moves_;
};

}  // namespace

void for_each_owned(const Plan& plan, const std::function<void(const OwnedShare&)>& found) {
  DemandPosition position(plan.sets().size());
  const auto num_tensors = static_cast<int32_t>(plan.pairing().kind_of.size());
  for (int32_t tensor = 0; tensor < num_tensors; ++tensor) {
    const Pattern& pattern = plan.pattern_of(tensor);
    for (int32_t i = 0; i < static_cast<int32_t>(pattern.owned.size()); ++i) {
      const Holding& owned = pattern.owned[i];
      share_out(plan.sets().ends(owned.set), position.of(owned.set) + owned.offset_bytes, owned.box,
                pattern.demands.elem_bytes,
                [&](int32_t holder, const Box& box) { found({tensor, i, holder, box}); });
    }
    position.pass(pattern.demands);
  }
}

Table<Move> combined_moves(const Plan& plan, Rank rank) { return CombinedMoves(plan, rank).run(); }

std::vector<OwnedPart> owned_parts(const Plan& plan) {
  std::vector<OwnedPart> parts;
  for_each_owned(plan, [&](const OwnedShare& share) {
    const Pattern& pattern = plan.pattern_of(share.tensor);
    const int32_t dst_piece =
        first_piece(plan.dst(), share.tensor) + pattern.owned[share.holding].ordinals[share.holder];
    const Piece& piece = plan.dst().pieces()[dst_piece];
    for (const Box& box : parts_of(pattern, share.box))
      parts.push_back(
          {piece.rank, dst_piece, place_within(piece.place, piece.box, box).offset_elems, box});
  });
  const auto key = [&](const OwnedPart& part) {
    return std::tuple(part.owner, plan.dst().pieces()[part.dst_piece].local, part.offset_elems);
  };
  std::sort(parts.begin(), parts.end(),
            [&](const OwnedPart& a, const OwnedPart& b) { return key(a) < key(b); });
  return parts;
}

}  // namespace hybridengine
