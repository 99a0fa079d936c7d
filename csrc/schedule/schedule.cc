#include "schedule/schedule.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"

namespace hybridengine {
namespace {

constexpr char kMagic[] = "hybridengine.schedule";
constexpr uint32_t kVersion = 2;
constexpr size_t kBucketBytes = 4 + 4 + 1 + 1 + 4 + 4 + 8 + 8;  // without items
constexpr size_t kItemBytes = 4 + 8;                            // of 0 dims

const std::vector<int32_t> kNothing;

const std::vector<int32_t>& row(const std::unordered_map<Rank, std::vector<int32_t>>& rows,
                                Rank rank) {
  const auto found = rows.find(rank);
  return found == rows.end() ? kNothing : found->second;
}

}  // namespace

Schedule::Schedule(PlanPtr plan, int64_t bucket_bytes, std::vector<Bucket> buckets)
    : plan_(std::move(plan)), bucket_bytes_(bucket_bytes), buckets_(std::move(buckets)) {
  std::vector<int32_t> order(buckets_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::pair(buckets_[a].step, buckets_[a].round) <
           std::pair(buckets_[b].step, buckets_[b].round);
  });
  for (const int32_t id : order) {
    const Bucket& bucket = buckets_[id];
    if (bucket.step == 0 && bucket.group >= 0) add_to_group(id);
    if (bucket.local()) continue;
    incoming_[bucket.dst].push_back(id);
    outgoing_[bucket.src].push_back(id);
  }
  for (std::vector<int32_t>& group : groups_)
    std::sort(group.begin(), group.end(),
              [&](int32_t a, int32_t b) { return buckets_[a].src < buckets_[b].src; });
  for (size_t i = 0; i < plan_->moves().size(); ++i)
    if (plan_->moves()[i].local() && !plan_->reduces())
      local_[plan_->moves()[i].dst].push_back(static_cast<int32_t>(i));
}

void Schedule::add_to_group(int32_t id) {
  const Bucket& bucket = buckets_[id];
  if (bucket.group >= static_cast<int32_t>(groups_.size())) groups_.resize(bucket.group + 1);
  if (groups_[bucket.group].empty()) groups_of_[bucket.dst].push_back(bucket.group);
  groups_[bucket.group].push_back(id);
}

const std::vector<int32_t>& Schedule::groups_of(Rank rank) const { return row(groups_of_, rank); }
const std::vector<int32_t>& Schedule::incoming(Rank rank) const { return row(incoming_, rank); }
const std::vector<int32_t>& Schedule::outgoing(Rank rank) const { return row(outgoing_, rank); }
const std::vector<int32_t>& Schedule::local_moves(Rank rank) const { return row(local_, rank); }

std::string Schedule::to_string() const {
  std::string text = str_cat(buckets_.size(), " buckets of at most ", bucket_bytes_, " bytes\n");
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    text += str_cat("bucket ", i, ": round ", bucket.round, ", rank ", bucket.src, " -> rank ",
                    bucket.dst, ", ", bucket.items.size(), " items, ", bucket.num_bytes, " bytes",
                    bucket.direct ? ", direct\n" : "\n");
  }
  return text;
}

bool Schedule::operator==(const Schedule& other) const {
  return bucket_bytes_ == other.bucket_bytes_ && buckets_ == other.buckets_ &&
         *plan_ == *other.plan_;
}

void Schedule::put_buckets(BlobWriter& writer) const {
  writer.put(bucket_bytes_);
  writer.put<uint64_t>(buckets_.size());
  for (const Bucket& bucket : buckets_) {
    writer.put(bucket.src);
    writer.put(bucket.dst);
    writer.put(bucket.step);
    writer.put<uint8_t>(bucket.direct);
    writer.put(bucket.round);
    writer.put(bucket.group);
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
}

Blob Schedule::save() const {
  BlobWriter writer(kMagic, kVersion);
  writer.put_bytes(plan_->save());
  put_buckets(writer);
  return std::move(writer).finish();
}

uint64_t Schedule::digest() const {
  BlobWriter writer;
  put_buckets(writer);
  Digest digest;
  digest.update_number(plan_->digest());
  digest.update(std::move(writer).take());
  return digest.value();
}

namespace {

Item get_item(BlobReader& reader, const Plan& plan, const Bucket& bucket) {
  Item item;
  item.move = reader.get<int32_t>();
  item.offset_bytes = reader.get<int64_t>();
  if (item.move < 0 || item.move >= static_cast<int64_t>(plan.moves().size()))
    throw UsageError("saved bytes hold a bucket with an unknown move", str_cat(item.move), "");
  const Move& move = plan.moves()[item.move];
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
  const int64_t bytes = item.box.num_elems() * elem_bytes;
  if (move.src != bucket.src || move.dst != bucket.dst || item.offset_bytes < 0 ||
      item.offset_bytes > bucket.num_bytes - bytes || item.offset_bytes % elem_bytes != 0)
    throw UsageError("saved bytes hold an item that does not fit its bucket",
                     str_cat("move ", item.move), "");
  return item;
}

}  // namespace

SchedulePtr Schedule::load(std::string_view blob) {
  BlobReader reader(blob, kMagic, kVersion);
  PlanPtr plan = Plan::load(reader.get_bytes());
  const auto bucket_bytes = reader.get<int64_t>();
  if (bucket_bytes <= 0)
    throw UsageError("saved bytes hold a schedule of an impossible bucket size",
                     str_cat(bucket_bytes), "");
  const auto num_buckets = reader.get<uint64_t>();
  reader.check_count(num_buckets, kBucketBytes);
  std::vector<Bucket> buckets(num_buckets);
  for (Bucket& bucket : buckets) {
    bucket.src = reader.get<Rank>();
    bucket.dst = reader.get<Rank>();
    bucket.step = reader.get<uint8_t>();
    bucket.direct = reader.get<uint8_t>() != 0;
    bucket.round = reader.get<int32_t>();
    bucket.group = reader.get<int32_t>();
    if (bucket.group < -1 || bucket.group >= static_cast<int64_t>(num_buckets))
      throw UsageError("saved bytes hold a bucket of an impossible group", str_cat(bucket.group),
                       "");
    bucket.num_bytes = reader.get<int64_t>();
    const auto num_items = reader.get<uint64_t>();
    reader.check_count(num_items, kItemBytes);
    if (bucket.num_bytes < 0 || bucket.num_bytes > bucket_bytes)
      throw UsageError("saved bytes hold a bucket of an impossible size", str_cat(bucket.num_bytes),
                       "");
    for (uint64_t i = 0; i < num_items; ++i)
      bucket.items.push_back(get_item(reader, *plan, bucket));
  }
  reader.finish();
  auto schedule =
      std::make_shared<const Schedule>(std::move(plan), bucket_bytes, std::move(buckets));
  schedule->check();
  return schedule;
}

}  // namespace hybridengine
