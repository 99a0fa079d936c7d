// Folding: contributions of several ranks to one group become its result.
//
// All contributions to a part are taken at once, in ascending rank order: from slots, and from this
// rank's own memory where they lie. What comes out does not depend on where buckets and groups
// begin.
#include <algorithm>

#include "base/trace.h"
#include "device/reduce.h"
#include "engine/execution.h"
#include "engine/runs.h"

namespace hybridengine {
namespace {

constexpr int64_t kBlockElems = 16 << 10;  // that are combined before they are rounded
constexpr int64_t kContributionAlignment = 64;

StridedEnd contiguous(std::byte* data, Dtype dtype) { return {data, Dims{1}, dtype}; }

/// Combines blocks; where the result has another type than the contributions it is rounded from
/// their accumulator.
class Folder {
 public:
  Folder(Op op, Dtype src, Dtype dst)
      : op_(op), src_(src), dst_(dst), accumulator_(accumulator_dtype(src)) {
    if (src != dst && accumulator_ != dst) scratch_.resize(kBlockElems * dtype_bytes(accumulator_));
  }

  /// A run of each contribution.
  void operator()(std::span<const std::byte*> srcs, std::byte* dst, int64_t elems) {
    if (scratch_.empty()) return combine(srcs, dst, elems);
    for (int64_t done = 0; done < elems; done += kBlockElems) {
      const int64_t block = std::min(kBlockElems, elems - done);
      combine(srcs, dst, block);
      for (const std::byte*& src : srcs) src += block * static_cast<int64_t>(dtype_bytes(src_));
      dst += block * static_cast<int64_t>(dtype_bytes(dst_));
    }
  }

 private:
  void combine(std::span<const std::byte* const> srcs, std::byte* dst, int64_t elems) {
    const int divisor = op_ == Op::kMean ? static_cast<int>(srcs.size()) : 1;
    if (src_ == dst_) return fold(reduce_op(op_), dst_, srcs, divisor, dst, elems);
    std::byte* sum = scratch_.empty() ? dst : scratch_.data();
    convert(srcs.front(), src_, sum, accumulator_, elems);
    for (const std::byte* src : srcs.subspan(1)) accumulate(reduce_op(op_), src_, src, sum, elems);
    const std::byte* const whole[] = {sum};
    if (divisor > 1) fold(ReduceOp::kSum, accumulator_, whole, divisor, sum, elems);
    if (sum != dst) convert(sum, accumulator_, dst, dst_, elems);
  }

  static void convert(const std::byte* src, Dtype from, std::byte* dst, Dtype to, int64_t elems) {
    copy_strided(contiguous(const_cast<std::byte*>(src), from), contiguous(dst, to), 1,
                 Dims{elems});
  }

  Op op_;
  Dtype src_, dst_, accumulator_;
  std::vector<std::byte> scratch_;
};

}  // namespace

/// One box of a group: the contributions to it, ascending by rank.
struct Execution::Part {
  std::vector<size_t> buckets;  // positions in the group
  std::vector<const Item*> items;
};

Execution::Group* Execution::group_of(const Bucket& bucket) {
  if (bucket.step != 0 || bucket.group < 0) return nullptr;
  const auto found = groups_.find(bucket.group);
  return found == groups_.end() ? nullptr : &found->second;
}

/// Room for one contribution to a group in a slot.
int64_t Execution::contribution_pitch(int32_t id) const {
  int64_t largest = 0;
  for (const int32_t bucket : schedule_->groups()[id])
    largest = std::max(largest, bucket_of(bucket).num_bytes);
  return (largest + kContributionAlignment - 1) / kContributionAlignment * kContributionAlignment;
}

void Execution::receive_contribution(const Message& landed, Rank peer) {
  const auto id = static_cast<int32_t>(landed.bucket);
  if (comm_.transport().caps().payload && options_.verify)
    compare_digests(landed, bucket_of(id), incoming_[id].base);
  note_received(id, peer);
  Group& group = groups_.at(bucket_of(id).group);
  if (--group.missing == 0) folds_.push_back(bucket_of(id).group);
}

StridedEnd Execution::contribution_end(int32_t id, const Item& item) const {
  return bucket_of(id).local() ? source_end(item)
                               : bucket_end(move_of(item), item, incoming_[id].base);
}

bool Execution::fold_next() {
  if (folds_.empty()) return false;
  const int32_t id = folds_.front();
  folds_.pop_front();
  TraceSpan span(Subsystem::kEngine, "fold");
  span.arg("group", id);
  const auto start = std::chrono::steady_clock::now();
  if (comm_.transport().caps().payload) fold(id);
  report_.unpack_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  finish_group(id);
  return true;
}

/// Equal offsets in the buckets of a group are the same part.
std::vector<Execution::Part> Execution::parts_of(int32_t id) const {
  const std::vector<int32_t>& buckets = schedule_->groups()[id];
  std::vector<size_t> next(buckets.size(), 0);
  std::vector<Part> parts;
  for (;;) {
    int64_t offset = INT64_MAX;
    for (size_t i = 0; i < buckets.size(); ++i)
      if (next[i] < bucket_of(buckets[i]).items.size())
        offset = std::min(offset, bucket_of(buckets[i]).items[next[i]].offset_bytes);
    if (offset == INT64_MAX) return parts;
    Part part;
    for (size_t i = 0; i < buckets.size(); ++i) {
      const std::vector<Item>& items = bucket_of(buckets[i]).items;
      if (next[i] >= items.size() || items[next[i]].offset_bytes != offset) continue;
      part.buckets.push_back(i);
      part.items.push_back(&items[next[i]++]);
    }
    parts.push_back(std::move(part));
  }
}

void Execution::fold(int32_t id) {
  std::map<std::pair<Dtype, Dtype>, Folder> folders;
  std::vector<Dims> strides;
  std::vector<StridedEnd> ends;
  std::vector<const std::byte*> srcs;
  for (const Part& part : parts_of(id)) {
    const Move& move = move_of(*part.items.front());
    const StridedEnd target = target_end(*part.items.front());
    strides.assign(1, target.strides);
    ends.clear();
    for (size_t i = 0; i < part.items.size(); ++i) {
      ends.push_back(contribution_end(schedule_->groups()[id][part.buckets[i]], *part.items[i]));
      strides.push_back(ends.back().strides);
    }
    Folder& folder =
        folders
            .try_emplace({move.src_dtype, move.dst_dtype}, move.op, move.src_dtype, move.dst_dtype)
            .first->second;
    const auto src_bytes = static_cast<int64_t>(dtype_bytes(move.src_dtype));
    const auto dst_bytes = static_cast<int64_t>(dtype_bytes(move.dst_dtype));
    srcs.resize(ends.size());
    for_each_run(strides, part.items.front()->box,
                 [&](std::span<const int64_t> offsets, int64_t elems) {
                   for (size_t i = 0; i < ends.size(); ++i)
                     srcs[i] = ends[i].data + offsets[i + 1] * src_bytes;
                   folder(srcs, target.data + offsets[0] * dst_bytes, elems);
                 });
  }
}

/// Frees what the group held, and lets its result go.
void Execution::finish_group(int32_t id) {
  Group& group = groups_.at(id);
  group.folded = true;
  ++folded_;
  if (group.slot >= 0) {
    free_slots_.push_back(group.slot);
    ++slots_landed_;
  }
  for (const int32_t bucket : group.kept)
    for (const Item& item : bucket_of(bucket).items) copy_within(item);
  if (comm_.transport().caps().pull)
    for (const int32_t bucket : group.outgoing) announce_ready(bucket);
  for (const Message& granted : group.granted)
    send_bucket(granted, bucket_of(static_cast<int32_t>(granted.bucket)).dst);
  group.granted.clear();
  comm_.made_progress();
}

}  // namespace hybridengine
