// Execution: one rank's part of one run of a Schedule.
//
// Each incoming bucket is *granted* a place (a slot of this rank's staging, or the final places),
// in round order; the source packs into it and says that it has *landed*; the destination unpacks
// and grants the slot again. At most kSlots slots exist, so memory is bounded while ranks work on
// different buckets at the same time. Nothing here blocks but Communicator::wait, and only when
// there is nothing to do, so ranks cannot wait in a ring.
//
// What it is not: a planner, or a judge of what the caller wants. Called by bindings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/report.h"
#include "engine/memory.h"
#include "schedule/schedule.h"

namespace hybridengine {

/// Staging slots per rank: one lands while another is unpacked and a third is granted.
inline constexpr int kSlots = 3;

/// Why advance() came back.
struct Event {
  enum class Kind : uint8_t {
    kDone,      // all of this rank's part is through
    kNeed,      // provide() the memory of destination tensor `local`, then advance again
    kFinished,  // destination tensor `local`, provided before, is complete
  };
  Kind kind = Kind::kDone;
  int32_t local = -1;  // index among this rank's destination tensors, in layout order
};

struct RunOptions {
  /// Digest of the schedule: a peer that runs another one is an error before the first byte.
  uint64_t plan = 0;
  bool verify = false;  // compare a digest of every bucket between both ends
  /// Destination tensors are asked for one by one (kNeed) and handed back in order (kFinished); the
  /// bytes between the two stay below this, or one bucket's tensors. 0: all are given at the start.
  int64_t open_bytes = 0;
};

class Execution {
 public:
  /// `src` and `dst` are this rank's local tensors in layout order; when streaming, `dst` is empty.
  /// `aliased` destination tensors (by index) are views of the source already: nothing is copied
  /// into them. The memory must stay until the object is gone. Throws UsageError naming the tensor
  /// whose shape or type is not the layout's.
  Execution(Communicator& comm, SchedulePtr schedule, std::vector<TensorMemory> src,
            std::vector<TensorMemory> dst, const std::vector<int32_t>& aliased, RunOptions options);

  /// Goes on until there is an event for the caller. Throws as Communicator::wait does; the
  /// communicator is then dead.
  Event advance();
  void provide(int32_t local, const TensorMemory& memory);

  const Report& report() const { return report_; }

 private:
  enum class State : uint8_t { kAbsent, kOpen, kFinished };
  struct Target {  // a destination tensor
    TensorMemory memory;
    State state = State::kAbsent;
    bool aliased = false;
    int64_t missing_bytes = 0;  // still to come in buckets
    std::vector<int32_t> local_moves;
  };

  void take_memory(std::vector<TensorMemory> dst, const std::vector<int32_t>& aliased);
  void count_buckets();
  std::optional<Event> grant();
  std::optional<Event> hand_over();
  std::optional<Event> open_up_to(int32_t local);
  bool handle_arrivals();
  bool run_local_move();
  void wait_for_peers();
  bool done() const;
  void finish();

  void send_bucket(const Message& granted, Rank peer);
  void place_directly(const Bucket& bucket, const Message& granted);
  void pack(const Bucket& bucket, std::byte* window);
  void receive_bucket(const Message& landed, Rank peer);
  void unpack(const Bucket& bucket, const std::byte* slot);
  uint64_t digest_of_source(const Bucket& bucket, const std::byte* window) const;
  void compare_digests(const Message& landed, const Bucket& bucket, const std::byte* slot);
  void copy_local(int32_t move);
  int32_t last_local(const Bucket& bucket) const;
  int32_t local_of(const Move& move) const;
  StridedEnd source_end(const Item& item) const;
  StridedEnd target_end(const Item& item) const;
  PairBytes& pair(Rank peer);

  Communicator& comm_;
  SchedulePtr schedule_;
  RunOptions options_;
  Rank rank_;
  int32_t src_begin_ = 0, dst_begin_ = 0;  // first local tensor of this rank in either layout
  std::vector<TensorMemory> src_;
  std::vector<Target> targets_;
  std::vector<TensorMemory> target_memory_;  // what a direct sender reads

  std::vector<std::byte*> slots_;  // base addresses
  std::vector<size_t> slot_offset_;
  std::vector<int32_t> free_slots_;
  std::vector<int32_t> slot_of_;     // by bucket id; -1: not granted
  size_t next_grant_ = 0;            // into schedule_->incoming()
  size_t landed_ = 0, sent_ = 0;     // buckets
  std::vector<bool> outgoing_open_;  // by bucket id: not sent yet
  int32_t next_open_ = 0, next_hand_over_ = 0;
  int64_t open_bytes_ = 0;
  size_t next_local_ = 0;
  std::vector<Arrival> arrivals_;
  std::chrono::steady_clock::time_point started_;
  bool finished_ = false;
  Report report_;
};

}  // namespace hybridengine
