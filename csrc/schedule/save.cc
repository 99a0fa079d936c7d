// Schedules as bytes.
#include "base/error.h"
#include "schedule/schedule.h"

namespace hybridengine {
namespace {

constexpr char kMagic[] = "hybridengine.schedule";
constexpr uint32_t kVersion = 3;
constexpr size_t kBucketBytes = 4 + 4 + 1 + 1 + 4 + 4 + 4 + 8 + 8;  // without items
constexpr size_t kItemBytes = 4 + 8;                                // of 0 dims

void put_bucket(BlobWriter& writer, const Bucket& bucket) {
  writer.put(bucket.src);
  writer.put(bucket.dst);
  writer.put(bucket.step);
  writer.put<uint8_t>(bucket.plain);
  writer.put(bucket.round);
  writer.put(bucket.gate);
  writer.put(bucket.feeds);
  writer.put(bucket.num_bytes);
  writer.put<uint64_t>(bucket.items.size());
  for (const Item& item : bucket.items) {
    writer.put(item.move);
    writer.put(item.offset_bytes);
    for (int dim = 0; dim < item.box.ndim; ++dim) {
      writer.put(item.box.start[dim]);
      writer.put(item.box.size[dim]);
    }
  }
}

Item get_item(BlobReader& reader, const Table<Move>& moves, const Bucket& bucket) {
  Item item;
  item.move = reader.get<int32_t>();
  item.offset_bytes = reader.get<int64_t>();
  if (item.move < 0 || item.move >= static_cast<int64_t>(moves.size()))
    throw UsageError("saved bytes hold a bucket with an unknown move", str_cat(item.move), "");
  const Move& move = moves[item.move];
  item.box.ndim = move.box.ndim;
  for (int dim = 0; dim < move.box.ndim; ++dim) {
    const auto start = item.box.start[dim] = reader.get<int64_t>();
    const auto size = item.box.size[dim] = reader.get<int64_t>();
    if (start < move.box.start[dim] || size < 0 || start > move.box.end(dim) ||
        size > move.box.end(dim) - start)
      throw UsageError("saved bytes hold a bucket item outside of its move",
                       str_cat("move ", item.move), "");
  }
  const auto elem_bytes = static_cast<int64_t>(dtype_bytes(move.wire()));
  if (move.src != bucket.src || move.dst != bucket.dst || item.offset_bytes < 0 ||
      item.offset_bytes > bucket.num_bytes - item_bytes(move, item) ||
      item.offset_bytes % elem_bytes != 0)
    throw UsageError("saved bytes hold an item that does not fit its bucket",
                     str_cat("move ", item.move), "");
  return item;
}

Bucket get_bucket(BlobReader& reader, const Table<Move>& moves, int64_t bucket_bytes,
                  uint64_t num_buckets) {
  Bucket bucket;
  bucket.src = reader.get<Rank>();
  bucket.dst = reader.get<Rank>();
  bucket.step = reader.get<uint8_t>();
  bucket.plain = reader.get<uint8_t>() != 0;
  bucket.round = reader.get<int32_t>();
  bucket.gate = reader.get<int32_t>();
  bucket.feeds = reader.get<int32_t>();
  for (const int32_t gate : {bucket.gate, bucket.feeds})
    if (gate < -1 || gate >= static_cast<int64_t>(num_buckets))
      throw UsageError("saved bytes hold a bucket of an impossible gate", str_cat(gate), "");
  bucket.num_bytes = reader.get<int64_t>();
  const auto num_items = reader.get<uint64_t>();
  reader.check_count(num_items, kItemBytes);
  if (bucket.num_bytes < 0 || bucket.num_bytes > bucket_bytes || bucket.step > 1)
    throw UsageError("saved bytes hold a bucket of an impossible size or step",
                     str_cat(bucket.num_bytes), "");
  for (uint64_t i = 0; i < num_items; ++i) bucket.items.push_back(get_item(reader, moves, bucket));
  return bucket;
}

}  // namespace

Blob Schedule::save() const {
  BlobWriter writer(kMagic, kVersion);
  writer.put_bytes(plan_->save());
  writer.put(rank_);
  writer.put(bucket_bytes_);
  writer.put<uint8_t>(in_order_);
  writer.put<uint64_t>(buckets_.size());
  for (const Bucket& bucket : buckets_) put_bucket(writer, bucket);
  return std::move(writer).finish();
}

SchedulePtr Schedule::load(std::string_view blob) {
  BlobReader reader(blob, kMagic, kVersion);
  PlanPtr plan = Plan::load(reader.get_bytes());
  const auto rank = reader.get<Rank>();
  const auto bucket_bytes = reader.get<int64_t>();
  const bool in_order = reader.get<uint8_t>() != 0;
  if (bucket_bytes <= 0)
    throw UsageError("saved bytes hold a schedule of an impossible bucket size",
                     str_cat(bucket_bytes), "");
  const auto num_buckets = reader.get<uint64_t>();
  reader.check_count(num_buckets, kBucketBytes);
  Table<Move> moves = plan->moves_of(rank);
  std::vector<Bucket> buckets;
  for (uint64_t i = 0; i < num_buckets; ++i)
    buckets.push_back(get_bucket(reader, moves, bucket_bytes, num_buckets));
  reader.finish();
  auto schedule = std::make_shared<const Schedule>(std::move(plan), rank, bucket_bytes, in_order,
                                                   std::move(moves), std::move(buckets));
  schedule->check();
  return schedule;
}

}  // namespace hybridengine
