// Schedule: a Plan's moves cut and fused into buckets, in the order in which they travel.
//
// Vocabulary: an *item* is a part of one move at an offset in its bucket. A *bucket* holds items
// between one ordered pair of ranks in one step, at most bucket_bytes of them. Tensors are cut
// wherever a bucket is full, so the largest tensor never sets memory. Local moves are in no bucket.
//
// What is combined travels in *groups*: a group is a stretch of what one owner combines, with one
// bucket per contributor, also from the owner itself, and equal parts at equal offsets in all of
// them. Buckets of step 1 carry what came out of one group, so each of them waits for that group
// alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/blob.h"
#include "plan/plan.h"

namespace hybridengine {

inline constexpr int64_t kDefaultBucketBytes = int64_t{32} << 20;

struct Item {
  int32_t move = 0;          // index into Plan::moves
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
  /// Every item is a plain copy of equal dtypes, so a transport may write the final places.
  bool direct = false;
  int32_t round = 0;   // position in the order of both ends
  int32_t group = -1;  // that it belongs to in step 0, that it waits for in step 1; -1: none
  int64_t num_bytes = 0;
  std::vector<Item> items;
  bool local() const { return src == dst; }
  bool operator==(const Bucket& other) const = default;
};

class Schedule {
 public:
  Schedule(PlanPtr plan, int64_t bucket_bytes, std::vector<Bucket> buckets);

  const Plan& plan() const { return *plan_; }
  const PlanPtr& plan_ptr() const { return plan_; }
  int64_t bucket_bytes() const { return bucket_bytes_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// Bucket ids in round order.
  const std::vector<int32_t>& incoming(Rank rank) const;
  const std::vector<int32_t>& outgoing(Rank rank) const;
  /// Ids of the buckets of each group, ascending by source rank.
  const std::vector<std::vector<int32_t>>& groups() const { return groups_; }
  /// The groups that a rank combines, in round order.
  const std::vector<int32_t>& groups_of(Rank rank) const;
  /// Indices into plan().moves() of the local moves of a rank; none where the plan reduces: they
  /// are in buckets then, like others.
  const std::vector<int32_t>& local_moves(Rank rank) const;

  /// Proves that every element that travels is in the buckets exactly once, within their size, at
  /// aligned offsets. Throws InternalError.
  void check() const;

  std::string to_string() const;
  uint64_t digest() const;
  Blob save() const;
  static std::shared_ptr<const Schedule> load(std::string_view blob);
  bool operator==(const Schedule& other) const;

 private:
  void put_buckets(BlobWriter& writer) const;
  void add_to_group(int32_t id);

  PlanPtr plan_;
  int64_t bucket_bytes_;
  std::vector<Bucket> buckets_;
  std::unordered_map<Rank, std::vector<int32_t>> incoming_, outgoing_, local_, groups_of_;
  std::vector<std::vector<int32_t>> groups_;
};

using SchedulePtr = std::shared_ptr<const Schedule>;

/// Buckets of a plan that reduces, in groups that fit into one bucket together.
std::vector<Bucket> fuse_reducing(const Plan& plan, int64_t bucket_bytes);

/// Cuts and fuses. `in_order` bounds how far a destination is filled ahead: buckets never reach
/// over a window of bucket_bytes of the destination rank's need, so tensors finish in plan order
/// (for Resharder.stream). Throws UsageError on bucket_bytes <= 0, or smaller than one element.
SchedulePtr make_schedule(const PlanPtr& plan, int64_t bucket_bytes = kDefaultBucketBytes,
                          bool in_order = false);

}  // namespace hybridengine
