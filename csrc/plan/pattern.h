// Pattern: what must move for every tensor of one pair kind, on all ranks.
//
// Vocabulary: an *ordinal* counts the pieces of one tensor in a layout. *Sources* are the source's
// holdings (layout/holders.h): equal boxes, and who has them.
//
// Where values are copied, a destination piece is cut along the sources; pieces that need the same
// *cuts* share one *cutting*. What its own rank holds of a piece stays there; any holder of the
// source can send the rest. Source boxes that overlap without being equal are served first come,
// first served, what the rank holds itself first: every byte still moves once.
//
// Where contributions are combined, the destination's holdings are *owned*: one of their holders
// combines each element, and hands what comes out to the other ranks that need it. An owned box is
// cut into *parts* where contributions begin or end.
//
// Who sends, or owns, is in the ends of HolderSets and not here.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/holders.h"
#include "layout/layout.h"
#include "plan/pairing.h"

namespace hybridengine {

/// A part of a destination piece that lies in one source.
struct Slice {
  Box box;
  int32_t source = 0;
  int64_t offset_bytes = 0;  // among what its cutting asks of the source's set
};

/// What destination pieces ask of the holders of one set, by ordinal of the piece.
struct PieceDemand {
  int32_t set = 0;
  std::vector<int64_t> begin_bytes;
};

struct Pattern {
  Demands demands;
  std::vector<Holding> sources;
  // Copied:
  std::vector<std::vector<Slice>> cuttings;
  std::vector<int32_t> cutting_of;         // by ordinal of the destination piece
  std::vector<PieceDemand> piece_demands;  // of the sets with a choice, ascending
  // Combined:
  std::vector<Holding> owned;

  /// Where a cut of a piece begins in the row of its set, within the tensor.
  int64_t begin_bytes(int32_t set, int32_t ordinal, const Slice& cut) const;
};

/// The sources of a tensor and their sets.
std::vector<Holding> find_sources(const Layout& src, int32_t tensor, HolderSets& sets);

/// The pattern of a pair kind whose values are copied. Throws UsageError naming a box that no
/// source rank holds.
Pattern make_copied(const Layout& src, const Layout& dst, const PairKind& kind, HolderSets& sets);

/// The pattern of a pair kind whose values are combined. Throws UsageError where a rank contributes
/// twice to one element.
Pattern make_combined(const Layout& src, const Layout& dst, const PairKind& kind, HolderSets& sets);

/// Works out what cuts ask of the sets: demands, offsets and piece demands.
void count_demands(Pattern& pattern, std::span<const Piece> pieces, const HolderSets& sets);

/// An owned box cut where contributions begin or end.
std::vector<Box> parts_of(const Pattern& pattern, const Box& owned);

}  // namespace hybridengine
