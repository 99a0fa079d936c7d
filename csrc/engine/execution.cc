#include "engine/execution.h"

#include <algorithm>

#include "base/error.h"
#include "base/trace.h"

namespace hybridengine {
namespace {

using Clock = std::chrono::steady_clock;

/// Slots start at different low address bits than the page-aligned tensors that they are copied
/// from and to: equal ones make loads and stores collide.
constexpr size_t kSlotSkew = 64;

}  // namespace

Execution::Execution(Communicator& comm, SchedulePtr schedule, SourceTables& tables,
                     std::vector<TensorMemory> src, std::vector<TensorMemory> dst,
                     const std::vector<int32_t>& aliased, RunOptions options)
    : comm_(comm),
      schedule_(std::move(schedule)),
      tables_(tables),
      options_(options),
      rank_(comm.rank()),
      src_(std::move(src)),
      started_at_(Clock::now()) {
  const Layout& layout = schedule_->plan().src();
  const auto [begin, end] = layout.locals_of(rank_);
  src_begin_ = begin;
  if (static_cast<int32_t>(src_.size()) != end - begin)
    throw UsageError(
        "a rank has another number of source tensors than its layout",
        str_cat(src_.size(), " given, ", end - begin, " on rank ", rank_, " of ", layout.text()),
        "");
  for (int32_t i = begin; i < end; ++i) check_memory(layout, layout.locals()[i], src_[i - begin]);
  if (schedule_->plan().reduces() && streaming())
    throw UsageError("a partial layout cannot be streamed", layout.text(),
                     "Reduce into tensors of your own: leave the stream, or the partial layout.");
  take_memory(std::move(dst), aliased);
  count_groups();
  count_buckets();
}

void Execution::take_memory(std::vector<TensorMemory> dst, const std::vector<int32_t>& aliased) {
  const Layout& layout = schedule_->plan().dst();
  const auto [begin, end] = layout.locals_of(rank_);
  dst_begin_ = begin;
  targets_.resize(end - begin);
  if (dst.size() != (streaming() ? 0 : targets_.size()))
    throw UsageError(
        "a rank has another number of destination tensors than its layout",
        str_cat(dst.size(), " given, ", targets_.size(), " on rank ", rank_, " of ", layout.text()),
        "");
  for (const int32_t local : aliased) targets_.at(local).aliased = true;
  for (const int32_t move : schedule_->local_moves(rank_)) {
    Target& target = targets_[local_of(schedule_->plan().moves()[move])];
    if (!target.aliased) target.local_moves.push_back(move);
  }
  for (size_t local = 0; local < dst.size(); ++local)
    provide(static_cast<int32_t>(local), dst[local]);
  if (comm_.transport().caps().direct) segment_ = segment_of(layout, rank_, dst);
}

void Execution::count_buckets() {
  incoming_.resize(schedule_->buckets().size());
  outgoing_open_.assign(schedule_->buckets().size(), false);
  for (const int32_t id : schedule_->outgoing(rank_)) outgoing_open_[id] = true;
  int64_t largest = 0;
  for (const SlotUser& user : slot_users_) {
    const auto others = static_cast<int64_t>(groups_.at(user.group).missing);
    largest = std::max(largest, others * contribution_pitch(user.group));
  }
  for (const int32_t id : schedule_->incoming(rank_)) {
    const Bucket& bucket = bucket_of(id);
    Incoming& incoming = incoming_[id];
    incoming.open = true;
    if (group_of(bucket) != nullptr) continue;
    if (segment_ && bucket.direct)
      incoming.way = Way::kDirect;
    else if (may_pull(bucket))
      incoming.way = Way::kPull;
    if (incoming.way == Way::kSlot) {
      slot_users_.push_back({.bucket = id});
      largest = std::max(largest, bucket.num_bytes);
    }
    for (const Item& item : bucket.items)
      targets_[local_of(move_of(item))].missing_bytes += item_bytes(move_of(item), item);
  }
  make_slots(std::min<size_t>(kSlots, slot_users_.size()), largest);
}

/// Groups take slots before anything else does: see the top of execution.h.
void Execution::count_groups() {
  for (const int32_t id : schedule_->groups_of(rank_)) {
    Group& group = groups_[id];
    for (const int32_t bucket : schedule_->groups()[id])
      if (!bucket_of(bucket).local()) ++group.missing;
    if (group.missing == 0)
      folds_.push_back(id);
    else
      slot_users_.push_back({.group = id});
  }
  if (groups_.empty()) return;
  for (const int32_t id : schedule_->outgoing(rank_))
    if (bucket_of(id).step == 1) groups_.at(bucket_of(id).group).outgoing.push_back(id);
  for (size_t id = 0; id < schedule_->buckets().size(); ++id) {
    const Bucket& bucket = schedule_->buckets()[id];
    if (bucket.local() && bucket.step == 1 && bucket.dst == rank_)
      groups_.at(bucket.group).kept.push_back(static_cast<int32_t>(id));
  }
}

bool Execution::may_pull(const Bucket& bucket) const {
  return comm_.transport().caps().pull && !streaming() && bucket.direct &&
         std::ranges::find(options_.readable, bucket.src) != options_.readable.end() &&
         comm_.transport().peer_memory()->readable(bucket.src) && pulls_well(bucket);
}

void Execution::make_slots(size_t count, int64_t largest_bytes) {
  if (count == 0) return;
  const size_t pitch = (static_cast<size_t>(largest_bytes) + 4095) / 4096 * 4096 + kSlotSkew;
  const Span staging = comm_.transport().staging(count * pitch);
  report_.staging_bytes = static_cast<int64_t>(staging.bytes);
  for (size_t slot = 0; slot < count; ++slot) {
    slot_offset_.push_back(slot * pitch);
    free_slots_.push_back(static_cast<int32_t>(count - 1 - slot));
    slots_.push_back(staging.data == nullptr ? nullptr : staging.data + slot * pitch);
  }
}

int32_t Execution::local_of(const Move& move) const {
  return schedule_->plan().dst_local(move) - dst_begin_;
}

void Execution::provide(int32_t local, const TensorMemory& memory) {
  const Layout& layout = schedule_->plan().dst();
  check_memory(layout, layout.locals()[dst_begin_ + local], memory);
  targets_[local].memory = memory;
}

Message Execution::message(MessageKind kind, int32_t bucket) const {
  Message result;
  result.kind = kind;
  result.bucket = static_cast<uint32_t>(bucket);
  result.plan = options_.plan;
  return result;
}

void Execution::start() {
  started_ = true;
  if (segment_) grant_directly();
  if (comm_.transport().caps().pull) announce_ready();
}

void Execution::grant_directly() {
  comm_.transport().peer_memory()->publish(segment_);
  for (const int32_t id : schedule_->incoming(rank_)) {
    if (incoming_[id].way != Way::kDirect) continue;
    Message granted = message(MessageKind::kGranted, id);
    granted.value = segment_->id();
    incoming_[id].granted = true;
    comm_.send(bucket_of(id).src, granted);
  }
}

/// Says of every bucket that may be read that it may; the destination may still grant another way.
void Execution::announce_ready() {
  std::vector<TensorMemory> readable = src_;
  if (schedule_->plan().reduces())
    for (const Target& target : targets_) readable.push_back(target.memory);
  tables_.set_own(readable);
  for (const int32_t id : schedule_->outgoing(rank_))
    if (bucket_of(id).step == 0) announce_ready(id);
}

void Execution::announce_ready(int32_t id) {
  const Bucket& bucket = bucket_of(id);
  if (!bucket.direct) return;
  if (const Blob* news = tables_.news_for(bucket.dst)) send_addresses(bucket.dst, *news);
  Message ready = message(MessageKind::kReady, id);
  ready.offset = tables_.digest();
  if (options_.verify) ready.value = digest_of_source(bucket, nullptr);
  comm_.send(bucket.dst, ready);
}

void Execution::send_addresses(Rank peer, const Blob& table) {
  Message part = message(MessageKind::kAddresses, 0);
  part.value = table.size();
  for (; part.offset < table.size(); part.offset += part.text.size()) {
    part.text = table.substr(part.offset, kMaxTextBytes);
    comm_.send(peer, part);
  }
}

Event Execution::advance() {
  if (!started_) start();
  for (;;) {
    if (auto event = hand_over()) return *event;
    if (auto event = grant_slots()) return *event;
    if (handle_arrivals() || fold_next() || pull_next() || run_local_move()) continue;
    if (done()) {
      if (auto event = open_up_to(static_cast<int32_t>(targets_.size()) - 1)) return *event;
      if (next_local_ < targets_.size()) continue;
      if (auto event = hand_over()) return *event;
      finish();
      return {};
    }
    wait_for_peers();
  }
}

/// Streaming only: the next tensor, in layout order, that is complete.
std::optional<Event> Execution::hand_over() {
  if (!streaming() || next_hand_over_ >= next_open_) return std::nullopt;
  const Target& target = targets_[next_hand_over_];
  if (target.missing_bytes > 0 || static_cast<int32_t>(next_local_) <= next_hand_over_)
    return std::nullopt;
  const LocalTensor& local = schedule_->plan().dst().locals()[dst_begin_ + next_hand_over_];
  open_bytes_ -= local.shape.num_elems() * static_cast<int64_t>(dtype_bytes(local.dtype));
  return Event{Event::Kind::kFinished, next_hand_over_++};
}

/// Streaming only: asks for the next tensor, in layout order, up to `local`.
std::optional<Event> Execution::open_up_to(int32_t local) {
  if (!streaming() || next_open_ > local) return std::nullopt;
  const LocalTensor& next = schedule_->plan().dst().locals()[dst_begin_ + next_open_];
  open_bytes_ += next.shape.num_elems() * static_cast<int64_t>(dtype_bytes(next.dtype));
  return Event{Event::Kind::kNeed, next_open_++};
}

int32_t Execution::last_local(const Bucket& bucket) const {
  int32_t last = 0;
  for (const Item& item : bucket.items) last = std::max(last, local_of(move_of(item)));
  return last;
}

std::optional<Event> Execution::grant_slots() {
  while (next_slot_user_ < slot_users_.size() && !free_slots_.empty()) {
    const SlotUser& user = slot_users_[next_slot_user_];
    const int32_t last = streaming() ? last_local(bucket_of(user.bucket)) : 0;
    // Too much is open: what has been granted, and what comes from this rank, goes first.
    const bool full = streaming() && open_bytes_ >= options_.open_bytes;
    const bool busy =
        next_slot_user_ > slots_landed_ || static_cast<int32_t>(next_local_) < next_open_;
    if (full && busy && last >= next_open_) return std::nullopt;
    if (auto event = open_up_to(last)) return event;
    grant_slot(user);
    ++next_slot_user_;
  }
  return std::nullopt;
}

void Execution::grant_slot(const SlotUser& user) {
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  size_t within = 0;  // the slot
  const auto grant = [&](int32_t id) {
    incoming_[id].slot = slot;
    incoming_[id].base = slots_[slot] == nullptr ? nullptr : slots_[slot] + within;
    incoming_[id].granted = true;
    Message granted = message(MessageKind::kGranted, id);
    granted.offset = slot_offset_[slot] + within;
    comm_.send(bucket_of(id).src, granted);
  };
  if (user.group < 0) return grant(user.bucket);
  groups_.at(user.group).slot = slot;
  const auto pitch = static_cast<size_t>(contribution_pitch(user.group));
  for (const int32_t id : schedule_->groups()[user.group]) {
    if (bucket_of(id).local()) continue;
    grant(id);
    within += pitch;
  }
}

/// True when it did something, be it only to find a tensor without local moves.
bool Execution::run_local_move() {
  const size_t before = next_local_;
  const auto limit = streaming() ? static_cast<size_t>(next_open_) : targets_.size();
  while (next_local_ < limit) {
    Target& target = targets_[next_local_];
    if (target.local_moves.empty()) {
      ++next_local_;
      continue;
    }
    copy_local(target.local_moves.back());
    target.local_moves.pop_back();
    if (target.local_moves.empty()) ++next_local_;
    return true;
  }
  return next_local_ != before;
}

bool Execution::done() const {
  return landed_ == schedule_->incoming(rank_).size() &&
         sent_ == schedule_->outgoing(rank_).size() && folded_ == groups_.size();
}

void Execution::wait_for_peers() {
  std::vector<Rank> owing;
  int32_t first = -1;
  const auto add = [&](int32_t id, Rank peer) {
    if (owing.empty()) first = id;
    if (std::find(owing.begin(), owing.end(), peer) == owing.end()) owing.push_back(peer);
  };
  for (const int32_t id : schedule_->incoming(rank_))
    if (incoming_[id].open && (incoming_[id].granted || incoming_[id].way == Way::kPull))
      add(id, bucket_of(id).src);
  const bool arrival = first >= 0;
  for (const int32_t id : schedule_->outgoing(rank_))
    if (outgoing_open_[id]) add(id, bucket_of(id).dst);
  const Bucket& bucket = bucket_of(first);
  const std::string doing = str_cat(
      arrival ? "arrival" : "grant", " of bucket ", first, "/", schedule_->buckets().size(),
      ", round ", bucket.round, ", first tensor '",
      schedule_->plan().dst().spec().tensors()[move_of(bucket.items.front()).tensor].name, "'");
  const TraceSpan span(Subsystem::kEngine, "wait");
  const auto start = Clock::now();
  comm_.wait(owing, doing);
  report_.wait_seconds += std::chrono::duration<double>(Clock::now() - start).count();
}

void Execution::finish() {
  std::sort(report_.pairs.begin(), report_.pairs.end(),
            [](const PairBytes& a, const PairBytes& b) { return a.peer < b.peer; });
  report_.seconds = std::chrono::duration<double>(Clock::now() - started_at_).count();
}

}  // namespace hybridengine
