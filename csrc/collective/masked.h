// MaskedReduction: a sum or mean over those ranks that let an entry take part, on this rank.
//
// Step one: every rank gives each owner (chunks.h) the mask of its share and
// its values; the owner folds them in ascending order of ranks, in float32 (float64 and integers in
// themselves), with exact counts, and rounds once. Step two: the owner gives all ranks which
// entries have a result (or the counts, which say it too) and the results. What is masked is never
// read into a sum: the masks travel on every route.
//
// A *route* says which values travel. kWire: those that take part, compacted, so that the fewest
// bytes do; a stretch is *dense*, with all of its values, only where that costs no more: in step
// one where nearly all of it takes part, in step two where by the bytes of both steps a plain
// all-reduce with a mask would be smaller. kDense: all values, for copying runs is faster than
// picking elements. The results are the same bits.
//
// What it is not: a judge of arguments; the caller finds out what differs where agree() says that
// something does. Called by bindings.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collective/chunks.h"
#include "collective/flat.h"
#include "collective/steps.h"
#include "comm/communicator.h"
#include "engine/memory.h"

namespace hybridengine {

enum class MaskedOp : uint8_t {
  kSum,
  kMean,       // over the contributors of each entry
  kMeanWorld,  // over all ranks
};

enum class Route : uint8_t { kWire, kDense };

/// One tensor of the caller. The memory of all must stay until the reduction is gone.
struct MaskedTensor {
  TensorMemory values;
  TensorMemory scores;                   // one per entry, floating
  TensorMemory out;                      // of the shape and type of `values`, which it may be
  int32_t* counts = nullptr;             // one per entry; with MaskedOptions::counts
  std::optional<TensorMemory> residual;  // of the shape and type of `values`
  int64_t width = 1;                     // elements per entry
};

struct MaskedOptions {
  MaskedOp op = MaskedOp::kMean;
  double threshold = 0;
  double fill = 0;      // where nobody contributes
  bool counts = false;  // needed where an entry is more than one element
  /// Whether `out` holds `fill` everywhere already, so that it need not be written.
  bool out_is_filled = false;
  int64_t bucket_bytes = 0;    // three times this bounds the slots; 0: as fast as it gets
  std::optional<Route> route;  // none: the faster one
};

class MaskedReduction final : public Steps {
 public:
  /// Throws UsageError where memory that is written overlaps with other memory, and where a type
  /// cannot be reduced or, being an integer, not divided or filled as asked.
  MaskedReduction(const std::vector<MaskedTensor>& tensors, MaskedOptions options);

  /// Makes the masks. Returns the first tensor that has a NaN among its scores, or -1.
  int32_t read_scores();
  /// How many entries of this rank take part.
  int64_t kept() const { return kept_; }

  /// Collective, within a call: whether all ranks made the same `statement` (a digest). Then all
  /// have agreed on a route too: where the caller leaves it open, kWire where at most
  /// `wire_density` of all elements take part, by the number that rank 0 gave.
  bool agree(Communicator& comm, uint64_t statement, double wire_density);
  /// What a rank calls whose arguments are wrong, while the others agree().
  static void refuse(Communicator& comm);

  /// Collective, within a call. `plan` is a digest of what all ranks agreed on. Throws as
  /// carry() does; out, counts and residual are then undefined.
  void run(Communicator& comm, uint64_t plan);
  Route route() const { return route_; }

  size_t contribute(Rank owner, size_t chunk, std::byte* dst) override;
  size_t combine(size_t chunk, std::span<const Span> parts, std::byte* dst) override;
  void take(Rank owner, size_t chunk, const Span& result) override;

  /// What this rank sent, and what it would have sent had everything taken part.
  int64_t wire_bytes() const { return wire_bytes_; }
  int64_t dense_bytes() const { return dense_bytes_; }
  int64_t staging_bytes() const { return staging_bytes_; }

 private:
  struct Tensor {
    FlatMemory values, scores, out;
    std::optional<FlatMemory> residual;
    int32_t* counts = nullptr;
    int64_t width = 1;
    uint64_t* mask = nullptr;  // of this rank, one bit per entry; in masks_
    uint64_t fill = 0;         // as an element

    bool as_they_lie() const { return values.contiguous() && !residual; }
    const std::byte* bits() const { return reinterpret_cast<const std::byte*>(mask); }
    const std::byte* fill_bytes() const { return reinterpret_cast<const std::byte*>(&fill); }
  };
  /// Of a stretch that this rank owns, once it is folded.
  struct Result {
    std::byte* bits = nullptr;      // entries with a contributor
    int64_t contributed_elems = 0;  // over all ranks
    int64_t num_elems = 0;          // with a contributor
    bool is_packed = false;         // its values, dense, are where the others read them
  };
  /// What one rank contributes to a stretch.
  struct Contribution {
    const std::byte* bits = nullptr;    // from the first entry that the stretch touches
    const std::byte* values = nullptr;  // null: this rank's own, where they lie
    bool compact = false;
  };
  using Contributions = std::vector<Contribution>;  // by rank

  // masked.cc: the order of things; masked_check.cc: the constructor
  int64_t own_kept_elems() const;

  // masked_packets.cc: what goes into packets, and comes out of them
  const std::byte* own_values(const Tensor& tensor, int64_t begin, int64_t end,
                              std::byte* scratch) const;
  void settle_residual(const Tensor& tensor, int64_t begin, int64_t end, std::byte* values) const;
  int64_t step_elems(const Tensor& tensor, const Stretch& stretch) const;
  size_t pack_contribution(const Stretch& stretch, std::byte* dst);
  size_t pack_result(const Stretch& stretch, const Result& result, std::byte* dst);
  size_t unpack_result(const Stretch& stretch, const std::byte* src);
  bool dense_result(const Stretch& stretch, const Result& result) const;
  int64_t meta_bytes(const Stretch& stretch) const;
  std::byte* packed_values(const Stretch& stretch, std::byte* dst) const;
  size_t read_contribution(const Stretch& stretch, const std::byte* src, Contribution& dst) const;

  // masked_fold.cc
  Result fold(const Stretch& stretch, Contributions& from, std::byte* packed);
  void fold_dense(const Tensor& tensor, const Stretch& stretch, const Contributions& from,
                  std::byte* packed, Result& result) const;
  void fold_elements(const Tensor& tensor, const Stretch& stretch, Contributions& from,
                     Result& result) const;
  void fold_entries(const Tensor& tensor, const Stretch& stretch, Contributions& from,
                    std::byte* packed, Result& result) const;
  void fold_run(Dtype dtype, std::span<const std::byte* const> srcs, std::byte* dst,
                std::byte* copy, int64_t count) const;
  int divisor(int contributors) const;

  std::vector<Tensor> tensors_;
  MaskedOptions options_;
  int64_t kept_ = 0;
  Route route_ = Route::kWire;

  std::vector<uint64_t> masks_;  // of all tensors

  // Of the stretch at hand; kept, so that many short ones allocate nothing.
  std::vector<uint64_t> pack_bits_, own_bits_, absent_bits_, result_bits_, taken_bits_;
  Contributions contributions_;

  // Of a run.
  Rank rank_ = 0;
  int32_t world_ = 1;
  int planes_ = 1;  // bits of a count
  bool payload_ = true;
  std::vector<std::vector<Chunk>> chunks_;  // by owner
  int64_t wire_bytes_ = 0, dense_bytes_ = 0, staging_bytes_ = 0;
};

}  // namespace hybridengine
