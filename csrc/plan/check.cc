// The proof of a plan, apart from the planner: per kind of tensor, with all its pieces.
//
// The ends of a set cut one row of demands, so every element of a demand has exactly one holder to
// serve it: what is proved here is that the holders have it, that demands are what destinations
// lack, and that ends lie between elements.
#include <algorithm>

#include "base/error.h"
#include "plan/plan.h"

namespace hybridengine {
namespace {

class Checker {
 public:
  explicit Checker(const Plan& plan) : plan_(plan) {}

  void run() const {
    ensure(plan_.patterns().size() == plan_.pairing().kinds.size(), "a plan lacks a kind of tensor",
           [] { return std::string(); });
    for (size_t i = 0; i < plan_.patterns().size(); ++i) {
      const PairKind& kind = plan_.pairing().kinds[i];
      const Pattern& pattern = plan_.patterns()[i];
      check_names(kind);
      for (const Holding& source : pattern.sources)
        check_holding(plan_.src(), kind.src_tensor, source, !plan_.reduces());
      if (plan_.reduces())
        check_combined(kind, pattern);
      else
        check_copied(kind, pattern);
    }
    for (int32_t set = 0; set < plan_.sets().size(); ++set) check_ends(set);
    check_bounds();
  }

 private:
  std::string name(const PairKind& kind, const Box& box) const {
    return str_cat("'", plan_.dst().spec().tensors()[kind.dst_tensor].name, "' ", box.to_string());
  }

  void check_names(const PairKind& kind) const {
    ensure(plan_.src().spec().tensors()[kind.src_tensor].name ==
               plan_.dst().spec().tensors()[kind.dst_tensor].name,
           "a pattern changes its tensor", [&] { return name(kind, Box()); });
  }

  /// Every holder has the box in the piece that is named for it.
  void check_holding(const Layout& layout, int32_t tensor, const Holding& holding,
                     bool has_set) const {
    const std::span<const Piece> pieces = layout.pieces_of(tensor);
    const auto facts = [&] {
      return str_cat("'", layout.spec().tensors()[tensor].name, "' ", holding.box.to_string());
    };
    ensure(!holding.ordinals.empty() && !holding.box.empty(), "a box has no holder", facts);
    ensure(!has_set || plan_.sets().ranks(holding.set).size() == holding.ordinals.size(),
           "a box has other holders than its set", facts);
    for (size_t i = 0; i < holding.ordinals.size(); ++i) {
      const int32_t ordinal = holding.ordinals[i];
      ensure(ordinal >= 0 && ordinal < static_cast<int64_t>(pieces.size()) &&
                 pieces[ordinal].box.contains(holding.box) &&
                 (i == 0 || pieces[holding.ordinals[i - 1]].rank < pieces[ordinal].rank),
             "a holder does not have its box", facts);
      ensure(!has_set || plan_.sets().ranks(holding.set)[i] == pieces[ordinal].rank,
             "a box has other holders than its set", facts);
    }
  }

  void check_copied(const PairKind& kind, const Pattern& pattern) const {
    const std::span<const Piece> pieces = plan_.dst().pieces_of(kind.dst_tensor);
    ensure(pattern.cutting_of.size() == pieces.size(), "a pattern has other pieces than its layout",
           [&] { return name(kind, Box()); });
    std::vector<const Piece*> checked(pattern.cuttings.size(), nullptr);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece*& first = checked[pattern.cutting_of[i]];
      if (first == nullptr)
        check_cutting(kind, pattern, pieces[i].box, pattern.cuttings[pattern.cutting_of[i]]);
      else
        ensure(first->box == pieces[i].box, "pieces with different boxes are cut alike",
               [&] { return name(kind, pieces[i].box); });
      first = &pieces[i];
    }
  }

  void check_cutting(const PairKind& kind, const Pattern& pattern, const Box& whole,
                     const std::vector<Slice>& cuts) const {
    std::vector<Box> boxes;
    for (const Slice& cut : cuts) {
      ensure(!cut.box.empty() && whole.contains(cut.box) &&
                 pattern.sources[cut.source].box.contains(cut.box),
             "a cut leaves its piece or its source", [&] { return name(kind, cut.box); });
      boxes.push_back(cut.box);
    }
    check_exactly_once(kind, whole, boxes);
  }

  void check_exactly_once(const PairKind& kind, const Box& whole,
                          const std::vector<Box>& boxes) const {
    ensure(boxes.size() < 2 || !find_overlap(whole, boxes), "a destination byte is written twice",
           [&] { return name(kind, whole); });
    int64_t elems = 0;
    for (const Box& box : boxes) elems += box.num_elems();
    ensure(elems == whole.num_elems(), "a destination byte is never written",
           [&] { return name(kind, whole); });
  }

  void check_combined(const PairKind& kind, const Pattern& pattern) const {
    std::vector<Box> boxes;
    for (const Holding& owned : pattern.owned) {
      check_holding(plan_.dst(), kind.dst_tensor, owned, true);
      check_parts(kind, pattern, owned);
      boxes.push_back(owned.box);
    }
    const Box whole(plan_.dst().spec().tensors()[kind.dst_tensor].shape);
    ensure(!find_overlap(whole, boxes), "an element has two owners",
           [&] { return name(kind, whole); });
    // Of each piece the owner's part is made there; the rest is copied from where it is made.
    for (const Piece& piece : plan_.dst().pieces_of(kind.dst_tensor)) {
      int64_t elems = 0;
      for (const Box& box : boxes) elems += intersect(piece.box, box).num_elems();
      ensure(elems == piece.box.num_elems(), "a destination byte is never written",
             [&] { return str_cat(name(kind, piece.box), " of rank ", piece.rank); });
    }
  }

  /// Every contributor of a part has all of it, and there is one.
  void check_parts(const PairKind& kind, const Pattern& pattern, const Holding& owned) const {
    const std::vector<Box> parts = parts_of(pattern, owned.box);
    check_exactly_once(kind, owned.box, parts);
    for (const Box& part : parts) {
      size_t contributors = 0;
      for (const Piece& piece : plan_.src().pieces_of(kind.src_tensor)) {
        const Box common = intersect(piece.box, part);
        ensure(common.empty() || common == part, "a move has a part of a contribution",
               [&] { return name(kind, part); });
        if (!common.empty()) ++contributors;
      }
      ensure(contributors > 0, "a contribution is missing", [&] { return name(kind, part); });
    }
  }

  /// Ascending, between elements, and up to all that is asked.
  void check_ends(int32_t set) const {
    const std::vector<int64_t>& ends = plan_.sets().ends(set);
    const auto facts = [&] { return str_cat("set ", set, ", ", ends.size(), " holders"); };
    ensure(ends.size() == plan_.sets().ranks(set).size() && ends.front() >= 0 &&
               std::is_sorted(ends.begin(), ends.end()),
           "the shares of holders are not in order", facts);
    int64_t at = 0;
    size_t next = 0;
    for (const int32_t kind : plan_.pairing().kind_of) {
      const Demands& demands = plan_.patterns()[kind].demands;
      const int64_t bytes = demands.of(set);
      for (; next < ends.size() && ends[next] <= at + bytes; ++next)
        ensure((ends[next] - at) % demands.elem_bytes == 0, "a share ends amid an element", facts);
      at += bytes;
    }
    ensure(ends.back() == at, "the shares of holders are not all that is asked of them", facts);
  }

  void check_bounds() const {
    int64_t sent = 0, received = 0;
    for (const RankBytes& row : plan_.certificate().ranks) {
      ensure(row.received_bytes == row.bound_bytes, "a rank receives another amount than its bound",
             [&] {
               return str_cat("rank ", row.rank, ": ", row.received_bytes, " and ", row.bound_bytes,
                              " bytes");
             });
      sent += row.sent_bytes;
      received += row.received_bytes;
    }
    ensure(sent == received, "ranks send another amount than they receive",
           [&] { return str_cat(sent, " and ", received, " bytes"); });
  }

  const Plan& plan_;
};

}  // namespace

void Plan::check() const { Checker(*this).run(); }

}  // namespace hybridengine
