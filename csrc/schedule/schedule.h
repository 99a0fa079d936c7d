// Schedule: one rank's part of a Plan, cut and fused into buckets, in the order in which they
// travel.
//
// Vocabulary: an *item* is a part of one move at an offset in its bucket. A *bucket* holds items
// between one ordered pair of ranks in one step, at most bucket_bytes of them. Tensors are cut
// wherever a bucket is full, so the largest tensor never sets memory. Both ends of a pair come to
// the same buckets from the plan alone; between them a bucket is named by its *index* within the
// ordered pair. Ids count this rank's own buckets and mean nothing to others.
//
// A *gate* is what must have landed on this rank before a bucket may leave it, and the op that
// folds what landed. What is combined travels in such groups: a gate is a stretch of what this rank
// owns, with one bucket per contributor, also from itself, and equal parts at equal offsets in all
// of them. Buckets of step 1 carry what came out of one gate, so each of them waits for that alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/blob.h"
#include "plan/plan.h"

namespace hybridengine {

inline constexpr int64_t kDefaultBucketBytes = int64_t{32} << 20;

struct Item {
  int32_t move = 0;          // index into Schedule::moves
  int64_t offset_bytes = 0;  // in the bucket, aligned to the element size on the wire
  Box box;                   // within the move's box
  bool operator==(const Item& other) const = default;
};

/// Bytes of an item on the wire.
inline int64_t item_bytes(const Move& move, const Item& item) {
  return item.box.num_elems() * static_cast<int64_t>(dtype_bytes(move.wire()));
}

struct Bucket {
  Rank src = 0;
  Rank dst = 0;
  uint8_t step = 0;
  int32_t index = 0;  // within the ordered pair, those of step 0 first
  /// Every item is a plain copy of equal dtypes, so a transport may write the final places.
  bool plain = false;
  int32_t round = 0;   // position in the order of both ends
  int32_t gate = -1;   // of this rank, that must be open before it leaves; -1: none
  int32_t feeds = -1;  // gate of this rank that its landing counts for; -1: none
  int64_t num_bytes = 0;
  std::vector<Item> items;
  bool local() const { return src == dst; }
  bool operator==(const Bucket& other) const = default;
};

struct Gate {
  Op op = Op::kCopy;              // that folds what landed; kCopy: nothing to fold
  std::vector<int32_t> landings;  // ids of buckets, ascending by source rank; the local one too
  bool operator==(const Gate& other) const = default;
};

class Schedule {
 public:
  /// `moves` are those of `rank`. Gates and indices follow from the buckets' order and `feeds`.
  Schedule(PlanPtr plan, Rank rank, int64_t bucket_bytes, bool in_order, Table<Move> moves,
           std::vector<Bucket> buckets);

  const Plan& plan() const { return *plan_; }
  const PlanPtr& plan_ptr() const { return plan_; }
  Rank rank() const { return rank_; }
  int64_t bucket_bytes() const { return bucket_bytes_; }
  bool in_order() const { return in_order_; }
  /// That this rank sends, receives or keeps: Plan::moves_of.
  const Table<Move>& moves() const { return moves_; }
  /// That this rank sends, receives or keeps.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Bucket ids in the order of steps and rounds, without those that stay.
  const std::vector<int32_t>& incoming() const { return incoming_; }
  const std::vector<int32_t>& outgoing() const { return outgoing_; }
  /// In the order of rounds.
  const std::vector<Gate>& gates() const { return gates_; }
  /// Indices into moves() of those that stay; none where the plan reduces: they are in buckets
  /// then, like others.
  const std::vector<int32_t>& local_moves() const { return local_; }
  /// The bucket that the two ranks of a pair know as `index`; -1 where this rank has none.
  int32_t id_of(Rank src, Rank dst, uint32_t index) const;

  /// Proves that every element that this rank sends or receives is in its buckets exactly once,
  /// within their size, at aligned offsets. Throws InternalError.
  void check() const;

  std::string to_string() const;
  /// Of what buckets follow from; the same on every rank.
  uint64_t digest() const;
  Blob save() const;
  static std::shared_ptr<const Schedule> load(std::string_view blob);
  bool operator==(const Schedule& other) const;

 private:
  void make_gates();
  void number_buckets();

  PlanPtr plan_;
  Rank rank_;
  int64_t bucket_bytes_;
  bool in_order_;
  Table<Move> moves_;
  std::vector<Bucket> buckets_;
  std::vector<int32_t> incoming_, outgoing_, local_;
  std::vector<Gate> gates_;
  std::map<std::pair<Rank, Rank>, std::vector<int32_t>> by_pair_;  // ids by index
};

using SchedulePtr = std::shared_ptr<const Schedule>;

/// Cuts and fuses what `rank` has a part in. `in_order` bounds how far a destination is filled
/// ahead: buckets never reach over a window of bucket_bytes of the destination rank's need, so
/// tensors finish in plan order (for Resharder.stream). Throws as check_bucket_bytes() does.
SchedulePtr make_schedule(const PlanPtr& plan, Rank rank,
                          int64_t bucket_bytes = kDefaultBucketBytes, bool in_order = false);

/// Throws UsageError on bucket_bytes <= 0, or smaller than one element that travels.
void check_bucket_bytes(const Plan& plan, int64_t bucket_bytes);

/// What goes over one ordered pair of ranks.
struct PairSum {
  Rank src = 0;
  Rank dst = 0;
  int64_t num_bytes = 0;
  int64_t num_buckets = 0;
};

/// Of all pairs with payload, ascending: what the schedules of all ranks have together, which are
/// not all made for it.
std::vector<PairSum> sum_pairs(const PlanPtr& plan, int64_t bucket_bytes);

}  // namespace hybridengine
