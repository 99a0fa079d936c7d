// AllReduce: every rank gets the sum (mean, max, min) of all ranks' tensors, in place.
//
// Each rank owns an equal share of the bytes (chunks.h), which it alone combines: in ascending
// order of ranks, in the accumulator's type, rounded once. So the result has the same bits on every
// rank, whatever the transport and the size of chunks. Each contribution is read once from where it
// lies and each result written once to where it is needed, past the cache; between the two there
// are packets of a few hundred KiB (rounds.h).
//
// What it is not: a judge of whether ranks agree. Called by collectives.
#pragma once

#include <span>
#include <vector>

#include "base/op.h"
#include "collective/chunks.h"
#include "collective/flat.h"
#include "collective/steps.h"
#include "comm/communicator.h"
#include "device/reduce.h"

namespace hybridengine {

class AllReduce final : public Steps {
 public:
  /// The memory of `tensors` must stay until this is gone. Buckets are those of
  /// packet_bytes_for().
  AllReduce(Communicator& comm, const std::vector<TensorMemory>& tensors, Op op,
            int64_t bucket_bytes);

  /// Collective, within a call. `plan` is a digest of what all ranks agreed on. Throws as
  /// carry() does; the tensors are then undefined.
  void run(uint64_t plan);

  size_t contribute(Rank owner, size_t chunk, std::byte* dst) override;
  size_t combine(size_t chunk, std::span<const Span> parts, std::byte* dst) override;
  void take(Rank owner, size_t chunk, const Span& result) override;

 private:
  void combine_stretch(const Stretch& stretch, std::span<const Span> parts, size_t skipped,
                       std::byte* dst);

  Communicator& comm_;
  std::vector<FlatMemory> tensors_;
  ReduceOp op_;
  int divisor_;
  int64_t packet_bytes_;
  std::vector<std::vector<Chunk>> chunks_;  // by owner
};

}  // namespace hybridengine
