// Layout: who holds what. For every rank its local tensors, and for every local tensor the pieces
// of logical tensors in it, each with its exact place.
//
// Equal boxes on several ranks are replicas; in a *partial* layout they are contributions, which
// belong together by an op (Partial(sum) of torch.distributed.tensor).
//
// Made by bind() from a rule and a spec, by hand from tensors and pieces, or by load(). It does not
// know memory addresses. The planner sees only pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/blob.h"
#include "base/op.h"
#include "base/table.h"
#include "layout/box.h"
#include "layout/rule.h"
#include "layout/spec.h"

namespace hybridengine {

/// Ranks are numbered below this, so that tables by rank stay small whatever a file says.
inline constexpr Rank kMaxRanks = 1 << 20;

/// What one rank stores under one name: contiguous, row-major, `shape`.
struct LocalTensor {
  Rank rank = 0;
  int32_t name = 0;  // index into Layout::names
  Dtype dtype = Dtype::kFloat32;
  Shape shape;
  bool operator==(const LocalTensor& other) const = default;
};

/// A box of logical tensor `tensor`, lying in local tensor `local` at `place`.
struct Piece {
  int32_t tensor = 0;
  int32_t local = 0;
  Rank rank = 0;
  Box box;
  LocalPlace place;
  bool operator==(const Piece& other) const = default;
};

class Layout {
 public:
  /// `locals` must be ordered by rank; `pieces` are brought into the order (tensor, rank, local)
  /// here and empty ones dropped. Throws UsageError on an index or rank that does not exist, no
  /// ranks or more than kMaxRanks, or a box outside of its tensor; the rest is for check().
  Layout(std::string text, SpecPtr spec, std::vector<Rank> ranks, std::vector<std::string> names,
         Table<LocalTensor> locals, Table<Piece> pieces);

  /// This layout with pieces that are contributions. Throws UsageError where an element type cannot
  /// be combined so.
  std::shared_ptr<const Layout> partial(Op op) const;
  /// What combines the pieces; kCopy: each of them is the value.
  Op op() const { return op_; }

  const std::string& text() const { return text_; }
  const Spec& spec() const { return *spec_; }
  const SpecPtr& spec_ptr() const { return spec_; }
  /// The ranks that take part, ascending. A rank may hold nothing.
  const std::vector<Rank>& ranks() const { return ranks_; }
  bool has_rank(Rank rank) const;
  const Table<LocalTensor>& locals() const { return locals_; }
  const std::string& name_of(const LocalTensor& local) const { return names_[local.name]; }
  /// Indices [first, second) into locals() of the local tensors of `rank`, in layout order.
  std::pair<int32_t, int32_t> locals_of(Rank rank) const;
  const Table<Piece>& pieces() const { return pieces_; }
  /// The pieces of one logical tensor, ascending by rank.
  std::span<const Piece> pieces_of(int32_t tensor) const;

  /// Tensors of one *kind* have the same shape, element type, and boxes on the same ranks in the
  /// same order; only places differ. What follows from boxes alone is worked out once per kind.
  int32_t kind_of(int32_t tensor) const { return kinds_[tensor]; }
  int32_t num_kinds() const { return num_kinds_; }

  /// Proves the layout: every element of every logical tensor is in some piece, every piece lies
  /// within its local tensor, no local element is claimed twice, element types agree, 63 bits count
  /// the bytes of all ranks. Throws UsageError naming tensor, rank and box.
  void check() const;

  int64_t num_bytes(Rank rank) const;
  std::string to_string(Rank rank) const;  // one line per local tensor and piece
  uint64_t digest() const;
  Blob save() const;
  static Layout load(std::string_view blob);
  bool operator==(const Layout& other) const;

 private:
  friend class Binder;  // fills a layout in place; what it makes needs no search for kinds
  Layout() = default;
  static void check_ranks(const std::vector<Rank>& ranks);
  void check_covered(int32_t tensor) const;
  void index_locals();
  void find_kinds();

  std::string text_;
  Op op_ = Op::kCopy;
  SpecPtr spec_;
  std::vector<Rank> ranks_;
  std::vector<std::string> names_;
  Table<LocalTensor> locals_;
  Table<Piece> pieces_;
  std::vector<int32_t> local_begin_;  // by index into ranks_
  std::vector<int64_t> piece_begin_;  // by tensor
  std::vector<int32_t> kinds_;        // by tensor
  int32_t num_kinds_ = 0;
};

using LayoutPtr = std::shared_ptr<const Layout>;

/// Runs the rule over the spec. Local tensors come in spec order (of their first slot). Throws
/// UsageError: a tensor that no rule matches, a size that a cut cannot divide, fused slots whose
/// other dims differ, a part of a tensor that no rank holds. The result passes check().
LayoutPtr bind(const LayoutRule& rule, const SpecPtr& spec);

}  // namespace hybridengine
