// Counting a plan: per kind of tensor, times their number, and what choices say.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "plan/route.h"

namespace hybridengine {
namespace {

class Counter {
 public:
  explicit Counter(const Plan& plan) : plan_(plan), src_(plan.src()), dst_(plan.dst()) {
    std::vector<Rank> ranks;
    std::set_union(src_.ranks().begin(), src_.ranks().end(), dst_.ranks().begin(),
                   dst_.ranks().end(), std::back_inserter(ranks));
    counts_.certificate.ranks.resize(ranks.size());
    index_.resize(ranks.back() + 1, -1);
    for (size_t i = 0; i < ranks.size(); ++i) {
      counts_.certificate.ranks[i].rank = ranks[i];
      index_[ranks[i]] = static_cast<int32_t>(i);
    }
    is_sender_.resize(ranks.size(), false);
  }

  Counts run() {
    for (const PairKind& kind : plan_.pairing().kinds)
      for (const Piece& piece : src_.pieces_of(kind.src_tensor))
        is_sender_[index_[piece.rank]] = true;
    if (plan_.reduces())
      count_combined();
    else
      count_copied();
    for (size_t i = 0; i < is_sender_.size(); ++i)
      if (is_sender_[i]) counts_.certificate.senders.push_back(counts_.certificate.ranks[i].rank);
    return std::move(counts_);
  }

 private:
  RankBytes& row(Rank rank) { return counts_.certificate.ranks[index_[rank]]; }

  void count_copied() {
    for (size_t i = 0; i < plan_.patterns().size(); ++i) count_copied(i);
    for (RankBytes& each : counts_.certificate.ranks)
      each.bound_bytes = each.needed_bytes - each.held_bytes;
    for (int32_t set = 0; set < plan_.sets().size(); ++set)
      for (size_t i = 0; i < plan_.sets().ranks(set).size(); ++i)
        row(plan_.sets().ranks(set)[i]).sent_bytes +=
            plan_.sets().served_bytes(set, static_cast<int32_t>(i));
    for_each_shared(plan_, [&](int64_t boxes) { counts_.num_moves += boxes - 1; });
  }

  void count_copied(size_t index) {
    const PairKind& kind = plan_.pairing().kinds[index];
    const Pattern& pattern = plan_.patterns()[index];
    const int64_t bytes = pattern.demands.elem_bytes * kind.count;
    const std::span<const Piece> pieces = dst_.pieces_of(kind.dst_tensor);
    for (size_t i = 0; i < pieces.size(); ++i) {
      RankBytes& each = row(pieces[i].rank);
      each.needed_bytes += pieces[i].box.num_elems() * bytes;
      each.held_bytes += held_elems(src_, kind.src_tensor, pieces[i].rank, pieces[i].box) * bytes;
      const std::vector<Slice>& cutting = pattern.cuttings[pattern.cutting_of[i]];
      counts_.num_moves += static_cast<int64_t>(cutting.size()) * kind.count;
      for (const Slice& cut : cutting)
        if (!plan_.sets().contains(pattern.sources[cut.source].set, pieces[i].rank))
          each.received_bytes += cut.box.num_elems() * bytes;
    }
  }

  void count_combined() {
    for (const PairKind& kind : plan_.pairing().kinds) {
      const auto bytes =
          static_cast<int64_t>(dtype_bytes(dst_.spec().tensors()[kind.dst_tensor].dtype));
      for (const Piece& piece : dst_.pieces_of(kind.dst_tensor))
        row(piece.rank).needed_bytes += piece.box.num_elems() * bytes * kind.count;
    }
    // Whole boxes of one kind with one owner count alike.
    std::map<std::tuple<int32_t, int32_t, int32_t>, std::pair<OwnedShare, int64_t>> whole;
    for_each_owned(plan_, [&](const OwnedShare& share) {
      const int32_t kind = plan_.pairing().kind_of[share.tensor];
      if (share.box != plan_.patterns()[kind].owned[share.holding].box)
        return count_share(share, 1);
      const std::tuple key(kind, share.holding, share.holder);
      ++whole.try_emplace(key, share, 0).first->second.second;
    });
    for (const auto& [unused, share] : whole) count_share(share.first, share.second);
  }

  void count_share(const OwnedShare& share, int64_t count) {
    const Pattern& pattern = plan_.pattern_of(share.tensor);
    const int32_t src_tensor = plan_.pairing().src_tensor[share.tensor];
    const std::span<const Piece> held = src_.pieces_of(src_tensor);
    const std::span<const Piece> wanted = dst_.pieces_of(share.tensor);
    const int32_t owned = pattern.owned[share.holding].ordinals[share.holder];
    const Rank owner = wanted[owned].rank;
    const int64_t src_bytes =
        count * static_cast<int64_t>(dtype_bytes(src_.spec().tensors()[src_tensor].dtype));
    const int64_t dst_bytes = count * pattern.demands.elem_bytes;
    for (const Piece& piece : held)
      if (piece.rank != owner)
        row(owner).bound_bytes += intersect(piece.box, share.box).num_elems() * src_bytes;
    for (const Piece& piece : wanted)
      if (piece.rank != owner)
        row(piece.rank).bound_bytes += intersect(piece.box, share.box).num_elems() * dst_bytes;
    for (const Box& part : parts_of(pattern, share.box)) {
      for (const Piece& piece : held)
        if (piece.box.contains(part)) carry(piece.rank, owner, part.num_elems() * src_bytes, count);
      for (int32_t i = 0; i < static_cast<int32_t>(wanted.size()); ++i) {
        const Box common = intersect(wanted[i].box, part);
        if (i == owned || common.empty()) continue;
        carry(owner, wanted[i].rank, common.num_elems() * dst_bytes, count);
        is_sender_[index_[owner]] = true;
      }
    }
  }

  void carry(Rank from, Rank to, int64_t bytes, int64_t count) {
    counts_.num_moves += count;
    if (from == to) return;
    row(from).sent_bytes += bytes;
    row(to).received_bytes += bytes;
  }

  const Plan& plan_;
  const Layout& src_;
  const Layout& dst_;
  std::vector<int32_t> index_;  // of a rank's row
  std::vector<bool> is_sender_;
  Counts counts_;
};

}  // namespace

Counts count_moves(const Plan& plan) { return Counter(plan).run(); }

}  // namespace hybridengine
