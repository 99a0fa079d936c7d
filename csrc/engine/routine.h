// Routine: what is kept of a run that is made again and again.
//
// The compiled program, the addresses that peers were told and have told, and which parts the
// destination let the source put into their final places: both ends remember that alike, and of
// such a part the source does not say again that it may be read.
//
// Made by whoever runs a schedule, once; used by one run at a time. Called by engine/ and bindings.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "engine/copier.h"
#include "engine/places.h"
#include "engine/program.h"

namespace hybridengine {

struct RunOptions {
  /// Digest of the schedule: a peer that runs another one is an error before the first byte.
  uint64_t plan = 0;
  /// Ranks whose tensors are contiguous: only theirs are reached where they lie, for stretches of
  /// memory are then as long as the layouts say.
  std::vector<Rank> readable;
  bool verify = false;  // compare a digest of every part between both ends
  /// Destination tensors are asked for one by one (kNeed) and handed back in order (kFinished); the
  /// bytes between the two stay below this, or one part's tensors. 0: all are given at the start.
  int64_t open_bytes = 0;
  bool tell_released = false;  // with an event for each source tensor (kReleased)
};

class Routine {
 public:
  Routine(SchedulePtr schedule, RunOptions options)
      : schedule_(std::move(schedule)), options_(std::move(options)) {}

  const RunOptions& options() const { return options_; }
  bool streaming() const { return options_.open_bytes > 0; }
  Rank rank() const { return schedule_->rank(); }
  /// Throws TransportError where what `peer` sent belongs to another plan, `theirs`.
  void check_plan_of(Rank peer, uint64_t theirs) const;
  int64_t shown_bytes() const { return Program::shown_bytes(*schedule_); }
  const Layout& src_layout() const { return schedule_->plan().src(); }
  const Layout& dst_layout() const { return schedule_->plan().dst(); }

  /// Compiled where these tensors have other shapes or strides than those of the run before.
  /// Throws as the constructor of Program does.
  const Program& program_for(std::span<const TensorMemory> tensors);
  AddressTables& tables() { return tables_; }
  /// packed_offsets() of a peer's destination tensors.
  const std::vector<int64_t>& offsets_of_peer(Rank peer);

  /// Room for lists, which is not asked for in each run again.
  CopyList& copies() { return copies_; }

  /// By part: whether it was put into its final places in the last run.
  std::vector<bool>& in_place() { return in_place_; }

 private:
  SchedulePtr schedule_;
  RunOptions options_;
  std::optional<Program> program_;
  AddressTables tables_;
  std::map<Rank, std::vector<int64_t>> peer_offsets_;  // of those written to
  CopyList copies_;
  std::vector<bool> in_place_;
};

/// A rank's sources and then its targets, as program.h counts them; targets of a stream have no
/// memory yet. Throws UsageError where there are more or fewer than in the layouts.
std::vector<TensorMemory> tensors_of(const Routine& routine, std::vector<TensorMemory> src,
                                     std::vector<TensorMemory> dst);

}  // namespace hybridengine
