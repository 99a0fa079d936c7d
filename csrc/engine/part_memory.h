// PartMemory: where the parts of a run lie, in this rank's tensors and in those of its peers.
//
// It turns the copies of a Program, which know no addresses, into lists for the Copier, and takes
// the digests that both ends compare. A list stays until the next one of its kind is asked for.
//
// What it is not: the one who moves bytes, or who knows when they may move. Called by Run.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/copier.h"
#include "engine/routine.h"

namespace hybridengine {

class PartMemory {
 public:
  /// `tensors` as program.h counts them.
  PartMemory(Routine& routine, std::vector<TensorMemory> tensors);

  const Program& program() const { return program_; }
  std::span<const TensorMemory> sources() const;
  std::span<const TensorMemory> targets() const;
  std::span<const TensorMemory> tensors() const { return tensors_; }
  /// Memory of a target that had none.
  void provide(int32_t target, const TensorMemory& memory);

  /// From this rank's tensors to a packed part, and from there to its tensors.
  const CopyList& pack(const Part& part, std::byte* packed);
  const CopyList& unpack(const Part& part, std::byte* packed);
  /// From this rank's tensors to the final places in a segment of its peer, of which that many
  /// bytes are used.
  const CopyList& place(const Part& part, std::byte* segment);
  size_t segment_bytes(Rank peer) const;
  /// From a tensor of this rank to another one; nothing where both are the same memory.
  const CopyList& keep(std::span<const Copy> copies);
  /// What is combined by a fold: this rank's contributions where they lie, and those of others
  /// where `packed` says that the part is.
  const FoldList& fold(const Fold& fold, const std::function<std::byte*(int32_t part)>& packed);

  /// A part as runs, between this rank's tensors and those of its other end, which lie where that
  /// rank's table of addresses says. Throw TransportError where it has no such tensor.
  std::span<const RemoteRun> runs_from_peer(const Part& part);
  std::span<const RemoteRun> runs_to_peer(const Part& part);
  /// To the final places in a segment of its peer.
  std::span<const RemoteRun> runs_to_segment(const Part& part, uint64_t region);

  // Without a conversion a digest covers the elements where they come from and where they end up;
  // with one it covers the bytes that travelled, which lie at `packed`.
  uint64_t digest_of_source(const Part& part, const std::byte* packed) const;
  uint64_t digest_of_target(const Part& part, const std::byte* packed) const;

 private:
  void clear(size_t num_copies);
  StridedEnd at(const End& end) const { return end_at(tensors_, end); }
  uint64_t digest(const Part& part, End Copy::* end, const std::byte* packed) const;
  std::span<const RemoteRun> runs(const Part& part, Rank peer, End Copy::* mine,
                                  End Copy::* theirs);
  void add_runs(const Copy& copy, const StridedEnd& here, const RegionRef& there,
                const Dims& their_strides);

  Routine& routine_;
  std::vector<TensorMemory> tensors_;
  const Program& program_;
  CopyList& copies_;
  FoldList folds_;
  std::vector<RemoteRun> runs_;
};

}  // namespace hybridengine
