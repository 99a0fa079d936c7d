// Schedule: a Plan's moves cut and fused into buckets, in the order in which they travel.
//
// Vocabulary: an *item* is a part of one move at an offset in its bucket. A *bucket* holds items
// between one ordered pair of ranks in one step, at most bucket_bytes of them. Tensors are cut
// wherever a bucket is full, so the largest tensor never sets memory. Local moves are in no bucket.
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
  return item.box.num_elems() *
         static_cast<int64_t>(dtype_bytes(wire_dtype(move.src_dtype, move.dst_dtype)));
}

struct Bucket {
  Rank src = 0;
  Rank dst = 0;
  uint8_t step = 0;
  /// Every item is a plain copy of equal dtypes, so a transport may write the final places.
  bool direct = false;
  int32_t round = 0;  // position in the order of both ends
  int64_t num_bytes = 0;
  std::vector<Item> items;
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
  /// Indices into plan().moves() of the local moves of a rank.
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

  PlanPtr plan_;
  int64_t bucket_bytes_;
  std::vector<Bucket> buckets_;
  std::unordered_map<Rank, std::vector<int32_t>> incoming_, outgoing_, local_;
};

using SchedulePtr = std::shared_ptr<const Schedule>;

/// Cuts and fuses. `in_order` bounds how far a destination is filled ahead: buckets never reach
/// over a window of bucket_bytes of the destination rank's need, so tensors finish in plan order
/// (for Resharder.stream). Throws UsageError on bucket_bytes <= 0, or smaller than one element.
SchedulePtr make_schedule(const PlanPtr& plan, int64_t bucket_bytes = kDefaultBucketBytes,
                          bool in_order = false);

}  // namespace hybridengine
