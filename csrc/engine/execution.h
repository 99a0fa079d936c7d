// Execution: one rank's part of one run of a Schedule.
//
// A bucket goes one of three *ways*; the destination chooses:
//   slot    it grants a slot of its staging, in round order; the source packs into it and says that
//           the bucket has landed; the destination unpacks and grants the slot again. At most
//           kSlots slots exist, so memory is bounded while ranks work on different buckets at once.
//   direct  its tensors lie in a segment that peers map: it grants the final places at once, and
//           the source writes there. One copy, made by the source.
//   pull    the source has said that the bucket is ready where it lies; the destination reads it
//           into its places and releases it. One copy, made by the destination.
// Contributions to what this rank owns (see schedule.h) come by slot, so that what is folded is in
// cache; when all of a group are there it is folded in rank order, and only then do the buckets of
// step 1 that carry its result start. Slots go to groups before they go to results of others: a
// rank whose slots all wait for results could never let the contributions in that others wait for.
//
// Nothing here blocks but Communicator::wait, and only when there is nothing to do, so ranks cannot
// wait in a ring.
//
// What it is not: a planner, or a judge of what the caller wants. Called by bindings.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/report.h"
#include "engine/memory.h"
#include "engine/places.h"
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
  /// Ranks whose source tensors are contiguous: only these are read where they lie, for stretches
  /// of memory are then as long as the layouts say.
  std::vector<Rank> readable;
  bool verify = false;  // compare a digest of every bucket between both ends
  /// Destination tensors are asked for one by one (kNeed) and handed back in order (kFinished); the
  /// bytes between the two stay below this, or one bucket's tensors. 0: all are given at the start.
  int64_t open_bytes = 0;
};

StridedEnd bucket_end(const Move& move, const Item& item, std::byte* bucket);

class Execution {
 public:
  /// `src` and `dst` are this rank's local tensors in layout order; when streaming, `dst` is empty.
  /// `aliased` destination tensors (by index) are views of the source already: nothing is copied
  /// into them. `tables` is kept from run to run. The memory must stay until the object is gone.
  /// Throws UsageError naming the tensor whose shape or type is not the layout's.
  Execution(Communicator& comm, SchedulePtr schedule, SourceTables& tables,
            std::vector<TensorMemory> src, std::vector<TensorMemory> dst,
            const std::vector<int32_t>& aliased, RunOptions options);

  /// Goes on until there is an event for the caller. Throws as Communicator::wait does; the
  /// communicator is then dead.
  Event advance();
  void provide(int32_t local, const TensorMemory& memory);

  const Report& report() const { return report_; }

 private:
  enum class Way : uint8_t { kSlot, kDirect, kPull };
  struct Incoming {
    Way way = Way::kSlot;
    bool open = false;     // not complete yet
    bool granted = false;  // or, when pulling, ready
    int32_t slot = -1;
    std::byte* base = nullptr;  // where it lands, once granted a slot
  };
  struct Group {         // of those that this rank combines
    size_t missing = 0;  // contributions of others that are not here
    int32_t slot = -1;
    std::vector<int32_t> outgoing;  // buckets of step 1 that carry its result
    std::vector<int32_t> kept;      // those that stay on this rank
    std::vector<Message> granted;   // of those, that came before the result was there
    bool folded = false;
  };
  struct SlotUser {  // one bucket, or all contributions to a group
    int32_t bucket = -1;
    int32_t group = -1;
  };
  struct Target {  // a destination tensor
    TensorMemory memory;
    bool aliased = false;
    int64_t missing_bytes = 0;  // still to come in buckets
    std::vector<int32_t> local_moves;
  };

  // execution.cc: the order of things; arrivals.cc: what peers say
  void take_memory(std::vector<TensorMemory> dst, const std::vector<int32_t>& aliased);
  void count_buckets();
  void count_groups();
  bool may_pull(const Bucket& bucket) const;
  void make_slots(size_t count, int64_t largest_bytes);
  void start();
  void grant_directly();
  void announce_ready();
  void announce_ready(int32_t id);
  void send_addresses(Rank peer, const Blob& table);
  std::optional<Event> grant_slots();
  void grant_slot(const SlotUser& user);
  std::optional<Event> hand_over();
  std::optional<Event> open_up_to(int32_t local);
  bool handle_arrivals();
  bool take(const Message& message, Rank peer);
  bool pull_next();
  bool run_local_move();
  void wait_for_peers();
  bool done() const;
  void finish();
  bool streaming() const { return options_.open_bytes > 0; }
  Message message(MessageKind kind, int32_t bucket) const;

  // bucket_copy.cc: what touches payload
  void send_bucket(const Message& granted, Rank peer);
  void place_directly(const Bucket& bucket, Span segment);
  void pack(const Bucket& bucket, std::byte* window);
  void receive_bucket(const Message& landed, Rank peer);
  void unpack(const Bucket& bucket, const std::byte* slot);
  uint64_t digest_of_source(const Bucket& bucket, const std::byte* window) const;
  void compare_digests(const Message& landed, const Bucket& bucket, const std::byte* slot);
  void copy_local(int32_t move);
  void copy_within(const Item& item);
  void note_sent(int32_t bucket, Rank peer);
  void note_received(int32_t bucket, Rank peer);
  int32_t last_local(const Bucket& bucket) const;
  int32_t local_of(const Move& move) const;
  StridedEnd source_end(const Item& item) const;
  StridedEnd target_end(const Item& item) const;
  PairBytes& pair(Rank peer);

  // fold.cc: what comes together from several ranks
  struct Part;
  Group* group_of(const Bucket& bucket);
  void receive_contribution(const Message& landed, Rank peer);
  bool fold_next();
  void fold(int32_t id);
  std::vector<Part> parts_of(int32_t id) const;
  StridedEnd contribution_end(int32_t id, const Item& item) const;
  void finish_group(int32_t id);
  int64_t contribution_pitch(int32_t id) const;

  // pull.cc
  bool pulls_well(const Bucket& bucket) const;
  StridedEnd remote_end(const Item& item) const;
  void read_peer(Rank peer, std::span<const RemoteRun> runs);
  void pull(const Bucket& bucket);

  const Bucket& bucket_of(int32_t id) const { return schedule_->buckets()[id]; }
  const Move& move_of(const Item& item) const { return schedule_->plan().moves()[item.move]; }

  Communicator& comm_;
  SchedulePtr schedule_;
  SourceTables& tables_;
  RunOptions options_;
  Rank rank_;
  int32_t src_begin_ = 0, dst_begin_ = 0;  // first local tensor of this rank in either layout
  std::vector<TensorMemory> src_;
  std::vector<Target> targets_;
  SegmentPtr segment_;  // that holds all targets, or null
  bool started_ = false;

  std::vector<Incoming> incoming_;    // by bucket id
  std::vector<bool> outgoing_open_;   // by bucket id: not sent yet
  std::map<int32_t, Group> groups_;   // by id
  std::deque<int32_t> folds_;         // groups that are complete, not folded yet
  size_t folded_ = 0;                 // groups
  std::vector<SlotUser> slot_users_;  // in the order in which they get slots
  size_t next_slot_user_ = 0, slots_landed_ = 0;
  std::vector<std::byte*> slots_;  // base addresses
  std::vector<size_t> slot_offset_;
  std::vector<int32_t> free_slots_;
  std::deque<Message> pulls_;  // ready, not read yet
  std::vector<RemoteRun> pull_runs_;
  std::map<Rank, std::vector<int64_t>> peer_offsets_;  // packed_offsets of peers written to
  size_t landed_ = 0, sent_ = 0;                       // buckets

  int32_t next_open_ = 0, next_hand_over_ = 0;  // streaming
  int64_t open_bytes_ = 0;
  size_t next_local_ = 0;
  std::vector<Arrival> arrivals_;
  std::chrono::steady_clock::time_point started_at_;
  Report report_;
};

}  // namespace hybridengine
