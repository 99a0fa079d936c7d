// Folding: contributions of several ranks to one group become its result.
//
// All contributions to a part are taken at once, in ascending rank order, in blocks that stay in
// the cache: from this rank's own memory, from a slot, or read from a peer's memory into scratch
// just before. What comes out does not depend on where blocks, buckets and groups begin.
#include <algorithm>

#include "base/error.h"
#include "base/trace.h"
#include "device/reduce.h"
#include "engine/execution.h"
#include "engine/runs.h"

namespace hybridengine {
namespace {

constexpr int64_t kBlockBytes = 64 << 10;  // of one contribution
constexpr int64_t kContributionAlignment = 64;

StridedEnd contiguous(std::byte* data, Dtype dtype) { return {data, Dims{1}, dtype}; }

/// Combines blocks; where the result has another type than the contributions it is rounded from
/// their accumulator.
class Folder {
 public:
  Folder(Op op, Dtype src, Dtype dst)
      : op_(op), src_(src), dst_(dst), accumulator_(accumulator_dtype(src)) {
    if (src != dst && accumulator_ != dst)
      scratch_.resize(kBlockBytes / dtype_bytes(src) * dtype_bytes(accumulator_));
  }

  void operator()(std::span<const std::byte* const> srcs, std::byte* dst, int64_t elems) {
    const int divisor = op_ == Op::kMean ? static_cast<int>(srcs.size()) : 1;
    if (src_ == dst_) return fold(reduce_op(op_), dst_, srcs, divisor, dst, elems);
    std::byte* sum = scratch_.empty() ? dst : scratch_.data();
    convert(srcs.front(), src_, sum, accumulator_, elems);
    for (const std::byte* src : srcs.subspan(1)) accumulate(reduce_op(op_), src_, src, sum, elems);
    const std::byte* const whole[] = {sum};
    if (divisor > 1) fold(ReduceOp::kSum, accumulator_, whole, divisor, sum, elems);
    if (sum != dst) convert(sum, accumulator_, dst, dst_, elems);
  }

 private:
  static void convert(const std::byte* src, Dtype from, std::byte* dst, Dtype to, int64_t elems) {
    copy_strided(contiguous(const_cast<std::byte*>(src), from), contiguous(dst, to), 1,
                 Dims{elems});
  }

  Op op_;
  Dtype src_, dst_, accumulator_;
  std::vector<std::byte> scratch_;
};

/// Runs that wait until a block's worth of contributions of others can be read in one go.
class BlockReader {
 public:
  using Read = std::function<void(Rank, std::span<const RemoteRun>)>;

  BlockReader(Read read, std::vector<Rank> peers)
      : read_(std::move(read)), peers_(std::move(peers)), reads_(peers_.size()) {
    scratch_.resize(peers_.size() * kBlockBytes);
  }

  /// A run at `offsets` of the target and of each of `ends`, which lie in the memory of a peer
  /// where `readers` (index into peers) is not -1.
  void add_run(Folder& folder, std::span<const StridedEnd> ends, std::span<const int> readers,
               const StridedEnd& target, std::span<const int64_t> offsets, int64_t elems) {
    const auto src_bytes = static_cast<int64_t>(dtype_bytes(ends.front().dtype));
    const auto dst_bytes = static_cast<int64_t>(dtype_bytes(target.dtype));
    const int64_t most = kBlockBytes / src_bytes;
    for (int64_t done = 0; done < elems; done += most) {
      const int64_t count = std::min(most, elems - done);
      if (used_bytes_ + count * src_bytes > kBlockBytes) flush();
      pending_.push_back({&folder, target.data + (offsets[0] + done) * dst_bytes, count,
                          srcs_.size(), ends.size()});
      for (size_t i = 0; i < ends.size(); ++i)
        srcs_.push_back(local_address(ends[i].data + (offsets[i + 1] + done) * src_bytes,
                                      readers[i], count * src_bytes));
      used_bytes_ += count * src_bytes;
    }
  }

  void flush() {
    for (size_t peer = 0; peer < peers_.size(); ++peer)
      if (!reads_[peer].empty()) read_(peers_[peer], reads_[peer]);
    for (const Pending& run : pending_)
      (*run.folder)(std::span(srcs_).subspan(run.first, run.count), run.dst, run.elems);
    for (auto& reads : reads_) reads.clear();
    pending_.clear();
    srcs_.clear();
    used_bytes_ = 0;
  }

 private:
  /// Where `src` is, or will be once flush() has read it.
  const std::byte* local_address(const std::byte* src, int reader, int64_t bytes) {
    if (reader < 0) return src;
    std::byte* local = scratch_.data() + reader * kBlockBytes + used_bytes_;
    reads_[reader].push_back({reinterpret_cast<uint64_t>(src), local, static_cast<size_t>(bytes)});
    return local;
  }

  struct Pending {
    Folder* folder;
    std::byte* dst;
    int64_t elems;
    size_t first, count;  // of srcs_
  };

  Read read_;
  std::vector<Rank> peers_;
  std::vector<std::vector<RemoteRun>> reads_;  // by peer
  std::vector<std::byte> scratch_;
  std::vector<Pending> pending_;
  std::vector<const std::byte*> srcs_;
  int64_t used_bytes_ = 0;
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
    compare_digests(landed, bucket_of(id), contribution_base(id));
  note_received(id, peer);
  contribution_arrived(id);
}

/// Where the contribution of another rank lies in its group's slot.
std::byte* Execution::contribution_base(int32_t id) const {
  const Bucket& bucket = bucket_of(id);
  const int32_t slot = groups_.at(bucket.group).slot;
  int64_t offset = 0;
  for (const int32_t other : schedule_->groups()[bucket.group]) {
    if (other == id) break;
    if (!bucket_of(other).local()) offset += contribution_pitch(bucket.group);
  }
  return slots_[slot] + offset;
}

/// It is here, or may be read.
void Execution::contribution_arrived(int32_t id) {
  Group& group = groups_.at(bucket_of(id).group);
  if (--group.missing == 0) folds_.push_back(bucket_of(id).group);
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

/// What a fold reads from where, worked out once per group.
struct Execution::FoldSources {
  std::vector<std::byte*> base;  // by bucket of the group: its slot memory, where it has some
  std::vector<int> reader;       // by bucket of the group: whom to read from, -1: nobody
  std::vector<Rank> peers;       // that are read from
};

Execution::FoldSources Execution::sources_of(int32_t id) const {
  const std::vector<int32_t>& buckets = schedule_->groups()[id];
  FoldSources sources{
      std::vector<std::byte*>(buckets.size(), nullptr), std::vector<int>(buckets.size(), -1), {}};
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (bucket_of(buckets[i]).local()) continue;
    if (groups_.at(id).way == Way::kSlot) {
      sources.base[i] = contribution_base(buckets[i]);
      continue;
    }
    sources.reader[i] = static_cast<int>(sources.peers.size());
    sources.peers.push_back(bucket_of(buckets[i]).src);
  }
  return sources;
}

void Execution::fold(int32_t id) {
  const FoldSources sources = sources_of(id);
  BlockReader blocks([this](Rank peer, std::span<const RemoteRun> runs) { read_peer(peer, runs); },
                     sources.peers);
  std::map<std::pair<Dtype, Dtype>, Folder> folders;
  for (const Part& part : parts_of(id)) {
    const Move& move = move_of(*part.items.front());
    const StridedEnd target = target_end(*part.items.front());
    std::vector<Dims> strides{target.strides};
    std::vector<StridedEnd> ends;
    std::vector<int> readers;
    for (size_t i = 0; i < part.items.size(); ++i) {
      const size_t at = part.buckets[i];
      const Item& item = *part.items[i];
      ends.push_back(sources.base[at] != nullptr ? bucket_end(move_of(item), item, sources.base[at])
                     : sources.reader[at] >= 0   ? remote_end(item)
                                                 : source_end(item));
      strides.push_back(ends.back().strides);
      readers.push_back(sources.reader[at]);
    }
    const auto entry = folders.try_emplace({move.src_dtype, move.dst_dtype}, move.op,
                                           move.src_dtype, move.dst_dtype);
    for_each_run(strides, part.items.front()->box,
                 [&](std::span<const int64_t> offsets, int64_t elems) {
                   blocks.add_run(entry.first->second, ends, readers, target, offsets, elems);
                 });
  }
  blocks.flush();
}

/// Frees what the group held, and lets its result go.
void Execution::finish_group(int32_t id) {
  Group& group = groups_.at(id);
  group.folded = true;
  ++folded_;
  if (group.way == Way::kPull) {
    for (const int32_t bucket : schedule_->groups()[id]) {
      if (bucket_of(bucket).local()) continue;
      note_received(bucket, bucket_of(bucket).src);
      comm_.send(bucket_of(bucket).src, message(MessageKind::kReleased, bucket));
    }
  } else if (group.slot >= 0) {
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
