// The route of values that are copied.
#include <algorithm>
#include <optional>

#include "plan/route.h"

namespace hybridengine {
namespace {

/// A cut of a piece that a rank has a part in, in every tensor of a kind.
struct Part {
  const Slice* cut = nullptr;
  int32_t ordinal = 0;  // of the destination piece
  int32_t holder = -1;  // the position of a sender; of a receiver -1: whoever it is
};

struct KindParts {
  std::vector<Part> kept, received, sent;
  int64_t sure = 0;  // moves that they make at least
};

class CopiedMoves {
 public:
  CopiedMoves(const Plan& plan, Rank rank, bool arrivals_only) : plan_(plan), rank_(rank) {
    for (size_t kind = 0; kind < plan.patterns().size(); ++kind) {
      parts_.emplace_back();
      find_arrivals(kind);
      if (!arrivals_only) find_sent(kind);
      parts_.back().sure = count_sure(kind);
    }
  }

  Table<Move> run() {
    const std::vector<int32_t>& kind_of = plan_.pairing().kind_of;
    int64_t count = 0;
    for (const int32_t kind : kind_of) count += parts_[kind].sure;
    moves_.reserve(count);
    prefer_huge_pages(moves_.data(), count * sizeof(Move));
    DemandPosition position(plan_.sets().size());
    for (int32_t tensor = 0; tensor < static_cast<int32_t>(kind_of.size()); ++tensor) {
      const KindParts& parts = parts_[kind_of[tensor]];
      enter(tensor);
      for (const Part& part : parts.kept) {
        const Holding& source = pattern_->sources[part.cut->source];
        add(part, plan_.sets().position_of(source.set, rank_), part.cut->box);
      }
      for (const Part& part : parts.received) add_shares(part, position);
      for (const Part& part : parts.sent) add_shares(part, position);
      position.pass(pattern_->demands);
    }
    return std::move(moves_);
  }

 private:
  std::span<const Piece> wanted(size_t kind) const {
    return plan_.dst().pieces_of(plan_.pairing().kinds[kind].dst_tensor);
  }

  void find_arrivals(size_t kind) {
    const Pattern& pattern = plan_.patterns()[kind];
    const auto [begin, end] = ordinals_of(wanted(kind), rank_);
    for (int32_t ordinal = begin; ordinal < end; ++ordinal)
      for (const Slice& cut : pattern.cuttings[pattern.cutting_of[ordinal]]) {
        const bool kept = plan_.sets().contains(pattern.sources[cut.source].set, rank_);
        (kept ? parts_[kind].kept : parts_[kind].received).push_back({&cut, ordinal, -1});
      }
  }

  void find_sent(size_t kind) {
    const Pattern& pattern = plan_.patterns()[kind];
    std::vector<std::vector<std::pair<const Slice*, int32_t>>> offered(pattern.cuttings.size());
    bool any = false;
    std::vector<int32_t> holders;
    for (const Holding& source : pattern.sources)
      holders.push_back(plan_.sets().position_of(source.set, rank_));
    for (size_t i = 0; i < offered.size(); ++i)
      for (const Slice& cut : pattern.cuttings[i])
        if (holders[cut.source] >= 0) {
          offered[i].emplace_back(&cut, holders[cut.source]);
          any = true;
        }
    if (!any) return;
    const std::span<const Piece> pieces = wanted(kind);
    for (int32_t ordinal = 0; ordinal < static_cast<int32_t>(pieces.size()); ++ordinal)
      for (const auto& [cut, holder] : offered[pattern.cutting_of[ordinal]])
        if (!plan_.sets().contains(pattern.sources[cut->source].set, pieces[ordinal].rank))
          parts_[kind].sent.push_back({cut, ordinal, holder});
  }

  /// Of what others could send too, most is theirs.
  int64_t count_sure(size_t kind) const {
    const KindParts& parts = parts_[kind];
    const Pattern& pattern = plan_.patterns()[kind];
    return static_cast<int64_t>(parts.kept.size() + parts.received.size()) +
           std::count_if(parts.sent.begin(), parts.sent.end(), [&](const Part& part) {
             return plan_.sets().ranks(pattern.sources[part.cut->source].set).size() == 1;
           });
  }

  void enter(int32_t tensor) {
    tensor_ = tensor;
    pattern_ = &plan_.pattern_of(tensor);
    const int32_t src_tensor = plan_.pairing().src_tensor[tensor];
    src_piece_ = first_piece(plan_.src(), src_tensor);
    dst_piece_ = first_piece(plan_.dst(), tensor);
    src_dtype_ = plan_.src().spec().tensors()[src_tensor].dtype;
    dst_dtype_ = plan_.dst().spec().tensors()[tensor].dtype;
  }

  void add_shares(const Part& part, const DemandPosition& position) {
    const int32_t set = pattern_->sources[part.cut->source].set;
    const std::vector<int64_t>& ends = plan_.sets().ends(set);
    if (ends.size() == 1) return add(part, 0, part.cut->box);
    const int64_t begin = position.of(set) + pattern_->begin_bytes(set, part.ordinal, *part.cut);
    if (part.holder >= 0) {  // most demands are somebody else's
      const int64_t bytes = part.cut->box.num_elems() * pattern_->demands.elem_bytes;
      const int64_t first = part.holder == 0 ? 0 : ends[part.holder - 1];
      if (begin >= ends[part.holder] || begin + bytes <= first) return;
    }
    share_out(ends, begin, part.cut->box, pattern_->demands.elem_bytes,
              [&](int32_t holder, const Box& box) {
                if (part.holder < 0 || part.holder == holder) add(part, holder, box);
              });
  }

  void add(const Part& part, int32_t holder, const Box& box) {
    const int32_t src_piece = src_piece_ + pattern_->sources[part.cut->source].ordinals[holder];
    const int32_t dst_piece = dst_piece_ + part.ordinal;
    moves_.push_back({.tensor = tensor_,
                      .src_piece = src_piece,
                      .dst_piece = dst_piece,
                      .src = plan_.src().pieces()[src_piece].rank,
                      .dst = plan_.dst().pieces()[dst_piece].rank,
                      .src_dtype = src_dtype_,
                      .dst_dtype = dst_dtype_,
                      .box = box});
  }

  const Plan& plan_;
  const Rank rank_;
  std::vector<KindParts> parts_;
  // Of the tensor under way:
  int32_t tensor_ = 0, src_piece_ = 0, dst_piece_ = 0;
  const Pattern* pattern_ = nullptr;
  Dtype src_dtype_ = Dtype::kFloat32, dst_dtype_ = Dtype::kFloat32;
  Table<Move> moves_;
};

/// Whether some end of a row lies amid [begin, end) of it.
bool cuts_within(const std::vector<int64_t>& ends, int64_t begin, int64_t end) {
  const auto next = std::upper_bound(ends.begin(), ends.end(), begin);
  return next != ends.end() && *next < end;
}

}  // namespace

Table<Move> copied_moves(const Plan& plan, Rank rank, bool arrivals_only) {
  return CopiedMoves(plan, rank, arrivals_only).run();
}

void for_each_shared(const Plan& plan, const std::function<void(int64_t)>& found) {
  DemandPosition position(plan.sets().size());
  const auto num_tensors = static_cast<int32_t>(plan.pairing().kind_of.size());
  for (int32_t tensor = 0; tensor < num_tensors; ++tensor) {
    const Pattern& pattern = plan.pattern_of(tensor);
    const std::span<const Piece> pieces = plan.dst().pieces_of(tensor);
    for (const PieceDemand& demand : pattern.piece_demands) {
      const std::vector<int64_t>& ends = plan.sets().ends(demand.set);
      const int64_t at = position.of(demand.set);
      if (!cuts_within(ends, at, at + pattern.demands.of(demand.set))) continue;
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (plan.sets().contains(demand.set, pieces[i].rank)) continue;
        for (const Slice& cut : pattern.cuttings[pattern.cutting_of[i]]) {
          if (pattern.sources[cut.source].set != demand.set) continue;
          int64_t boxes = 0;
          share_out(ends, at + demand.begin_bytes[i] + cut.offset_bytes, cut.box,
                    pattern.demands.elem_bytes, [&](int32_t, const Box&) { ++boxes; });
          if (boxes > 1) found(boxes);
        }
      }
    }
    position.pass(pattern.demands);
  }
}

}  // namespace hybridengine
