// The part of an execution that touches payload: packing, unpacking, direct placement, local moves.
#include <algorithm>

#include "base/error.h"
#include "base/hash.h"
#include "base/trace.h"
#include "engine/execution.h"

namespace hybridengine {
namespace {

using Clock = std::chrono::steady_clock;

class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total) {}
  ~Stopwatch() { total_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  double& total_;
  Clock::time_point start_ = Clock::now();
};

/// What the certificate counts: without the gaps that align items of different widths.
int64_t payload_bytes(const Plan& plan, const Bucket& bucket) {
  int64_t bytes = 0;
  for (const Item& item : bucket.items) bytes += item_bytes(plan.moves()[item.move], item);
  return bytes;
}

uint64_t digest_of_bytes(const std::byte* data, int64_t bytes) {
  return digest_of({reinterpret_cast<const char*>(data), static_cast<size_t>(bytes)});
}

}  // namespace

/// An item inside of a bucket: contiguous, in the type that travels.
StridedEnd bucket_end(const Move& move, const Item& item, std::byte* bucket) {
  Shape shape;
  shape.ndim = item.box.ndim;
  shape.size = item.box.size;
  return {bucket + item.offset_bytes, shape.contiguous_strides(), move.wire()};
}

StridedEnd Execution::source_end(const Item& item) const {
  const Move& move = move_of(item);
  if (move.step == 1)
    return resolve(targets_[schedule_->plan().src_local(move) - dst_begin_].memory,
                   schedule_->plan().src_place(move, item.box), item.box);
  return resolve(src_[schedule_->plan().src_local(move) - src_begin_],
                 schedule_->plan().src_place(move, item.box), item.box);
}

StridedEnd Execution::target_end(const Item& item) const {
  const Move& move = move_of(item);
  return resolve(targets_[local_of(move)].memory, schedule_->plan().dst_place(move, item.box),
                 item.box);
}

PairBytes& Execution::pair(Rank peer) {
  for (PairBytes& row : report_.pairs)
    if (row.peer == peer) return row;
  return report_.pairs.emplace_back(PairBytes{peer, 0, 0});
}

void Execution::note_sent(int32_t id, Rank peer) {
  outgoing_open_[id] = false;
  ++sent_;
  ++report_.buckets_out;
  const int64_t bytes = payload_bytes(schedule_->plan(), bucket_of(id));
  report_.sent_bytes += bytes;
  pair(peer).sent_bytes += bytes;
}

void Execution::note_received(int32_t id, Rank peer) {
  int64_t bytes = 0;
  for (const Item& item : bucket_of(id).items) {
    const int64_t part = item_bytes(move_of(item), item);
    if (!move_of(item).reduces()) targets_[local_of(move_of(item))].missing_bytes -= part;
    bytes += part;
  }
  incoming_[id].open = false;
  ++landed_;
  ++report_.buckets_in;
  if (incoming_[id].way == Way::kDirect) ++report_.direct_buckets;
  if (incoming_[id].way == Way::kPull) ++report_.pulled_buckets;
  report_.received_bytes += bytes;
  pair(peer).received_bytes += bytes;
}

void Execution::send_bucket(const Message& granted, Rank peer) {
  const auto id = static_cast<int32_t>(granted.bucket);
  const Bucket& bucket = bucket_of(id);
  TraceSpan span(Subsystem::kEngine, "pack");
  span.arg("bucket", id).arg("peer", peer).arg("bytes", bucket.num_bytes);
  Message landed = message(MessageKind::kLanded, id);
  if (comm_.transport().caps().payload) {
    const Stopwatch watch(report_.pack_seconds);
    std::byte* window = nullptr;
    if (granted.value != 0) {
      place_directly(bucket, comm_.transport().peer_memory()->map(peer, granted.value));
    } else {
      size_t end = 0;
      if (__builtin_add_overflow(granted.offset, static_cast<size_t>(bucket.num_bytes), &end))
        throw TransportError("a peer grants a slot that no memory has",
                             str_cat("rank ", peer, ", offset ", granted.offset, ", bucket ", id,
                                     " of ", bucket.num_bytes, " bytes"),
                             "Do all ranks run the same version?");
      window = comm_.transport().window(peer, end).data + granted.offset;
      pack(bucket, window);
    }
    if (options_.verify) landed.value = digest_of_source(bucket, window);
  }
  comm_.send(peer, landed);
  note_sent(id, peer);
}

void Execution::place_directly(const Bucket& bucket, Span segment) {
  const Layout& layout = schedule_->plan().dst();
  auto [offsets, fresh] = peer_offsets_.try_emplace(bucket.dst);
  if (fresh) offsets->second = packed_offsets(layout, bucket.dst);
  const auto needed = static_cast<size_t>(offsets->second.back());
  if (segment.bytes < needed)
    throw TransportError(
        "a peer grants memory that its tensors do not fit into",
        str_cat("rank ", bucket.dst, ", segment of ", segment.bytes, " bytes, tensors of ", needed),
        "Do all ranks run the same version?");
  const int32_t peer_begin = layout.locals_of(bucket.dst).first;
  for (const Item& item : bucket.items) {
    const Place place = schedule_->plan().dst_place(move_of(item), item.box);
    const auto elem_bytes = static_cast<int64_t>(dtype_bytes(move_of(item).dst_dtype));
    const int64_t start = offsets->second[schedule_->plan().dst_local(move_of(item)) - peer_begin];
    const StridedEnd target{segment.data + start + place.offset_elems * elem_bytes, place.strides,
                            move_of(item).dst_dtype};
    copy_strided(source_end(item), target, item.box.ndim, item.box.size);
  }
}

void Execution::pack(const Bucket& bucket, std::byte* window) {
  for (const Item& item : bucket.items)
    copy_strided(source_end(item), bucket_end(move_of(item), item, window), item.box.ndim,
                 item.box.size);
}

void Execution::receive_bucket(const Message& landed, Rank peer) {
  const auto id = static_cast<int32_t>(landed.bucket);
  const Bucket& bucket = bucket_of(id);
  const int32_t slot = incoming_[id].slot;
  TraceSpan span(Subsystem::kEngine, "unpack");
  span.arg("bucket", id).arg("peer", peer).arg("bytes", bucket.num_bytes);
  if (comm_.transport().caps().payload) {
    const Stopwatch watch(report_.unpack_seconds);
    const std::byte* base = incoming_[id].base;
    if (slot >= 0) unpack(bucket, base);
    if (options_.verify) compare_digests(landed, bucket, base);
  }
  if (slot >= 0) {
    free_slots_.push_back(slot);
    ++slots_landed_;
  }
  note_received(id, peer);
}

void Execution::unpack(const Bucket& bucket, const std::byte* slot) {
  for (const Item& item : bucket.items)
    copy_strided(bucket_end(move_of(item), item, const_cast<std::byte*>(slot)), target_end(item),
                 item.box.ndim, item.box.size);
}

// Without a conversion the digest covers the elements where they come from and where they end up;
// with one it covers the bytes that travelled.

uint64_t Execution::digest_of_source(const Bucket& bucket, const std::byte* window) const {
  if (!bucket.direct) return digest_of_bytes(window, bucket.num_bytes);
  Digest digest;
  for (const Item& item : bucket.items)
    digest_strided(source_end(item), item.box.ndim, item.box.size, digest);
  return digest.value();
}

void Execution::compare_digests(const Message& landed, const Bucket& bucket,
                                const std::byte* slot) {
  Digest digest;
  for (const Item& item : bucket.items)
    if (bucket.direct) digest_strided(target_end(item), item.box.ndim, item.box.size, digest);
  const uint64_t found = bucket.direct ? digest.value() : digest_of_bytes(slot, bucket.num_bytes);
  if (landed.value != found)
    throw TransportError(
        "a bucket arrived damaged",
        str_cat("bucket ", landed.bucket, " from rank ", bucket.src, " to rank ", bucket.dst, ", ",
                bucket.num_bytes, " bytes, digests ", landed.value, " and ", found),
        "Do not use the destination tensors; check the memory of both hosts.");
  ++report_.verified_buckets;
}

void Execution::copy_local(int32_t index) {
  const TraceSpan span(Subsystem::kEngine, "local move");
  const Stopwatch watch(report_.local_seconds);
  copy_within({index, 0, schedule_->plan().moves()[index].box});
}

void Execution::copy_within(const Item& item) {
  report_.local_bytes += item_bytes(move_of(item), item);
  if (!comm_.transport().caps().payload) return;
  const StridedEnd source = source_end(item), target = target_end(item);
  if (source.data == target.data) return;  // in place: an all_gather from its own output
  copy_strided(source, target, item.box.ndim, item.box.size);
}

}  // namespace hybridengine
