// Program: one rank's compiled part of a Schedule.
//
// Vocabulary: a rank's *tensors* are its source tensors in layout order and then its destination
// tensors. A *copy* is one item with both of its ends resolved in the tensors of their ranks. A
// *part* is what travels as one: the items of a bucket that have the same *manner*, that is, how
// they go best where peers do not map each other's tensors:
//   read   both ends, or at least the source's, have long runs: the destination reads them
//   write  only the destination's runs are long: the source writes them
//   pack   short at both ends: copied twice, through a slot of staging
// Both ranks of a pair find the same parts, for they follow from the layouts alone. A *fold* is a
// group of contributions that this rank combines.
//
// Compiled once and kept from run to run; it knows no addresses, so it serves any memory of the
// same shapes and strides. It can be printed. What it is not: a state of a run. All that the engine
// reads of plans and schedules is read here. Called by engine/.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "engine/memory.h"
#include "schedule/schedule.h"

namespace hybridengine {

/// Where a box begins in a tensor of some rank, and how it steps on. Of this rank's tensors as they
/// are; of a peer's as if they were contiguous.
struct End {
  int32_t tensor = -1;
  int64_t offset_bytes = 0;
  Dims strides{};  // in elements
  Dtype dtype = Dtype::kFloat32;
};

struct Copy {
  End src, dst;
  Dtype wire = Dtype::kFloat32;
  Op op = Op::kCopy;
  Box box;
  int64_t offset_bytes = 0;  // in its part, packed

  int64_t wire_bytes() const { return box.num_elems() * static_cast<int64_t>(dtype_bytes(wire)); }
};

/// An end in the tensors of its rank, and a copy's elements inside of its packed part: contiguous,
/// in the type that travels.
inline StridedEnd end_at(std::span<const TensorMemory> tensors, const End& end) {
  return {tensors[end.tensor].data + end.offset_bytes, end.strides, end.dtype};
}
StridedEnd packed_end(const Copy& copy, std::byte* part);

enum class Manner : uint8_t { kPack, kRead, kWrite };
inline constexpr uint32_t kNumManners = 3;

struct Part {
  uint32_t name = 0;  // on the wire
  Rank src = 0, dst = 0;
  uint8_t step = 0;
  Manner manner = Manner::kPack;
  bool plain = false;   // equal dtypes: what arrives has the bits of what was sent
  bool placed = false;  // nothing is combined: may be put into its final places
  int32_t round = 0;
  int32_t feeds = -1;         // the fold that it contributes to
  int32_t gate = -1;          // the fold whose result it carries
  int64_t num_bytes = 0;      // of room, packed
  int64_t payload_bytes = 0;  // without the gaps that align copies of different widths
  int32_t last_target = -1;   // the last destination tensor that it reaches
  std::vector<Copy> copies;

  bool local() const { return src == dst; }
};

/// One box of a fold: what is combined there, ascending by source rank.
struct FoldBox {
  struct Contribution {
    int32_t part;
    int32_t copy;  // index into its copies
  };
  std::vector<Contribution> contributions;
};

struct Fold {
  std::vector<int32_t> parts;     // contributions, ascending by source rank, also this rank's own
  std::vector<int32_t> outgoing;  // parts of step 1 that carry its result
  std::vector<int32_t> kept;      // those of them that stay on this rank
  std::vector<FoldBox> boxes;
  int64_t pitch_bytes = 0;  // room for one contribution
};

struct ProgramOptions {
  /// Ranks whose tensors may be read and written by peers that can reach their memory. Without any
  /// there is nothing to tell apart: every part is packed.
  std::vector<Rank> readable;
};

/// Room beside each part in a small exchange (small_run.h).
inline constexpr int64_t kPartOverhead = 64;

class Program {
 public:
  /// Of the schedule's rank. `tensors` are its own; those without memory yet count as contiguous.
  /// Throws UsageError naming the tensor whose shape or type is not the layout's, or is strided so
  /// that a box does not lie along its dims.
  Program(SchedulePtr schedule, std::span<const TensorMemory> tensors,
          const ProgramOptions& options);

  /// What the schedule's rank shows at most where its parts go by a small exchange.
  static int64_t shown_bytes(const Schedule& schedule);

  Rank rank() const { return rank_; }
  int32_t num_sources() const { return num_sources_; }
  int32_t num_sources_of(Rank rank) const;
  int32_t num_targets() const { return static_cast<int32_t>(shapes_.size()) - num_sources_; }
  /// Whether it serves these tensors: same shapes, strides and types.
  bool fits(std::span<const TensorMemory> tensors) const;
  /// Throws UsageError unless destination tensor `target` may have this memory.
  void check_target(int32_t target, const TensorMemory& memory) const;
  int64_t target_bytes(int32_t target) const;

  const std::vector<Part>& parts() const { return parts_; }
  /// Indices into parts(), in round order, without local ones.
  const std::vector<int32_t>& incoming() const { return incoming_; }
  const std::vector<int32_t>& outgoing() const { return outgoing_; }
  const std::vector<Fold>& folds() const { return folds_; }
  /// Copies within this rank that belong to no fold, by destination tensor.
  const std::vector<std::vector<Copy>>& local_copies() const { return local_copies_; }
  /// The part that `src` sends to `dst` under that name; -1 where there is none here.
  int32_t find(Rank src, Rank dst, uint32_t name) const;

  bool reduces() const { return reduces_; }
  const Layout& src_layout() const { return schedule_->plan().src(); }
  const Layout& dst_layout() const { return schedule_->plan().dst(); }

  /// "bucket 12/88, round 3, first tensor 'x'".
  std::string describe(int32_t part) const;
  std::string to_string() const;  // program_text.cc

 private:
  std::string text_of(int32_t part) const;
  void check_tensors(std::span<const TensorMemory> tensors) const;
  void add_buckets(const ProgramOptions& options);
  void add_parts(int32_t bucket, bool by_manner);
  void add_folds();
  void add_boxes(Fold& fold) const;
  void add_local_copies();
  Copy compile(const Move& move, const Item& item) const;
  End end_of(Rank rank, int32_t tensor, const LocalPlace& place, const Box& box, Dtype dtype) const;
  int32_t src_tensor(const Move& move) const;
  int32_t dst_tensor(const Move& move) const;

  SchedulePtr schedule_;
  Rank rank_;
  bool reduces_;
  int32_t num_sources_ = 0;
  std::vector<TensorMemory> shapes_;  // of this rank's tensors: their addresses mean nothing
  std::vector<Part> parts_;
  std::vector<int32_t> incoming_, outgoing_;
  std::map<std::tuple<Rank, Rank, uint32_t>, int32_t> by_name_;  // from, to, name
  std::vector<Fold> folds_;
  std::vector<std::vector<Copy>> local_copies_;
};

}  // namespace hybridengine
