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

Execution::Execution(Communicator& comm, SchedulePtr schedule, std::vector<TensorMemory> src,
                     std::vector<TensorMemory> dst, const std::vector<int32_t>& aliased,
                     RunOptions options)
    : comm_(comm),
      schedule_(std::move(schedule)),
      options_(options),
      rank_(comm.rank()),
      src_(std::move(src)),
      started_(Clock::now()) {
  const Layout& layout = schedule_->plan().src();
  const auto [begin, end] = layout.locals_of(rank_);
  src_begin_ = begin;
  if (static_cast<int32_t>(src_.size()) != end - begin)
    throw UsageError(
        "a rank has another number of source tensors than its layout",
        str_cat(src_.size(), " given, ", end - begin, " on rank ", rank_, " of ", layout.text()),
        "");
  for (int32_t i = begin; i < end; ++i) check_memory(layout, layout.locals()[i], src_[i - begin]);
  take_memory(std::move(dst), aliased);
  count_buckets();
}

void Execution::take_memory(std::vector<TensorMemory> dst, const std::vector<int32_t>& aliased) {
  const Layout& layout = schedule_->plan().dst();
  const auto [begin, end] = layout.locals_of(rank_);
  dst_begin_ = begin;
  targets_.resize(end - begin);
  target_memory_.resize(end - begin);
  const bool streaming = options_.open_bytes > 0;
  if (dst.size() != (streaming ? 0 : targets_.size()))
    throw UsageError(
        "a rank has another number of destination tensors than its layout",
        str_cat(dst.size(), " given, ", targets_.size(), " on rank ", rank_, " of ", layout.text()),
        "");
  for (const int32_t local : aliased) targets_.at(local).aliased = true;
  for (const int32_t move : schedule_->local_moves(rank_)) {
    Target& target = targets_[local_of(schedule_->plan().moves()[move])];
    if (!target.aliased) target.local_moves.push_back(move);
  }
  for (int32_t local = 0; !streaming && local < static_cast<int32_t>(targets_.size()); ++local)
    provide(local, dst[local]);
}

void Execution::count_buckets() {
  slot_of_.assign(schedule_->buckets().size(), -1);
  outgoing_open_.assign(schedule_->buckets().size(), false);
  for (const int32_t id : schedule_->outgoing(rank_)) outgoing_open_[id] = true;
  int64_t largest = 0;
  for (const int32_t id : schedule_->incoming(rank_)) {
    const Bucket& bucket = schedule_->buckets()[id];
    largest = std::max(largest, bucket.num_bytes);
    for (const Item& item : bucket.items) {
      const Move& move = schedule_->plan().moves()[item.move];
      targets_[local_of(move)].missing_bytes +=
          item.box.num_elems() *
          static_cast<int64_t>(dtype_bytes(wire_dtype(move.src_dtype, move.dst_dtype)));
    }
  }
  const size_t count = std::min<size_t>(kSlots, schedule_->incoming(rank_).size());
  if (count == 0) return;
  const size_t pitch = (static_cast<size_t>(largest) + 4095) / 4096 * 4096 + kSlotSkew;
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
  targets_[local].memory = target_memory_[local] = memory;
  targets_[local].state = State::kOpen;
}

Event Execution::advance() {
  for (;;) {
    if (auto event = hand_over()) return *event;
    if (auto event = grant()) return *event;
    if (handle_arrivals() || run_local_move()) continue;
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
  if (options_.open_bytes == 0 || next_hand_over_ >= next_open_) return std::nullopt;
  Target& target = targets_[next_hand_over_];
  if (target.missing_bytes > 0 || static_cast<int32_t>(next_local_) <= next_hand_over_)
    return std::nullopt;
  target.state = State::kFinished;
  const LocalTensor& local = schedule_->plan().dst().locals()[dst_begin_ + next_hand_over_];
  open_bytes_ -= local.shape.num_elems() * static_cast<int64_t>(dtype_bytes(local.dtype));
  return Event{Event::Kind::kFinished, next_hand_over_++};
}

/// Streaming only: asks for the next tensor, in layout order, up to `local`.
std::optional<Event> Execution::open_up_to(int32_t local) {
  if (options_.open_bytes == 0 || next_open_ > local) return std::nullopt;
  const LocalTensor& next = schedule_->plan().dst().locals()[dst_begin_ + next_open_];
  open_bytes_ += next.shape.num_elems() * static_cast<int64_t>(dtype_bytes(next.dtype));
  return Event{Event::Kind::kNeed, next_open_++};
}

int32_t Execution::last_local(const Bucket& bucket) const {
  int32_t last = 0;
  for (const Item& item : bucket.items)
    last = std::max(last, local_of(schedule_->plan().moves()[item.move]));
  return last;
}

std::optional<Event> Execution::grant() {
  const std::vector<int32_t>& incoming = schedule_->incoming(rank_);
  const bool direct = comm_.transport().caps().direct;
  while (next_grant_ < incoming.size() && !free_slots_.empty()) {
    const int32_t id = incoming[next_grant_];
    const Bucket& bucket = schedule_->buckets()[id];
    // Too much is open: what has been granted, and what comes from this rank, goes first.
    const bool full = options_.open_bytes > 0 && open_bytes_ >= options_.open_bytes;
    const bool busy = next_grant_ > landed_ || static_cast<int32_t>(next_local_) < next_open_;
    if (full && busy && last_local(bucket) >= next_open_) return std::nullopt;
    if (auto event = open_up_to(last_local(bucket))) return event;
    slot_of_[id] = free_slots_.back();
    free_slots_.pop_back();
    Message granted;
    granted.kind = MessageKind::kGranted;
    granted.bucket = static_cast<uint32_t>(id);
    granted.plan = options_.plan;
    granted.offset = slot_offset_[slot_of_[id]];
    if (direct && bucket.direct) granted.value = reinterpret_cast<uint64_t>(target_memory_.data());
    comm_.send(bucket.src, granted);
    ++next_grant_;
  }
  return std::nullopt;
}

bool Execution::handle_arrivals() {
  arrivals_.clear();
  comm_.drain(arrivals_);
  for (const Arrival& arrival : arrivals_) {
    const Message& message = arrival.message;
    if (message.plan != options_.plan)
      throw TransportError("two ranks run different plans",
                           str_cat("rank ", rank_, " and rank ", arrival.peer, ", digests ",
                                   options_.plan, " and ", message.plan),
                           "Every rank must call the same resharder, in the same order.");
    const bool known = message.bucket < schedule_->buckets().size();
    if (known && message.kind == MessageKind::kGranted && outgoing_open_[message.bucket] &&
        schedule_->buckets()[message.bucket].dst == arrival.peer)
      send_bucket(message, arrival.peer);
    else if (known && message.kind == MessageKind::kLanded && slot_of_[message.bucket] >= 0 &&
             schedule_->buckets()[message.bucket].src == arrival.peer)
      receive_bucket(message, arrival.peer);
    else
      throw TransportError("a peer sent a message that fits no bucket",
                           str_cat("rank ", arrival.peer, ", kind ", static_cast<int>(message.kind),
                                   ", bucket ", message.bucket),
                           "Do all ranks run the same version?");
    comm_.made_progress();
  }
  return !arrivals_.empty();
}

/// True when it did something, be it only to find a tensor without local moves.
bool Execution::run_local_move() {
  const size_t before = next_local_;
  const auto limit = options_.open_bytes > 0 ? static_cast<size_t>(next_open_) : targets_.size();
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
  return landed_ == schedule_->incoming(rank_).size() && sent_ == schedule_->outgoing(rank_).size();
}

void Execution::wait_for_peers() {
  std::vector<Rank> owing;
  std::string doing;
  const auto add = [&](int32_t id, Rank peer, const char* what) {
    if (owing.empty())
      doing = str_cat(
          what, " of bucket ", id, "/", schedule_->buckets().size(), ", round ",
          schedule_->buckets()[id].round, ", first tensor '",
          schedule_->plan()
              .dst()
              .spec()
              .tensors()
                  [schedule_->plan().moves()[schedule_->buckets()[id].items.front().move].tensor]
              .name,
          "'");
    if (std::find(owing.begin(), owing.end(), peer) == owing.end()) owing.push_back(peer);
  };
  const std::vector<int32_t>& incoming = schedule_->incoming(rank_);
  for (size_t i = 0; i < next_grant_; ++i)
    if (slot_of_[incoming[i]] >= 0)
      add(incoming[i], schedule_->buckets()[incoming[i]].src, "arrival");
  for (const int32_t id : schedule_->outgoing(rank_))
    if (outgoing_open_[id]) add(id, schedule_->buckets()[id].dst, "grant");
  const TraceSpan span(Subsystem::kEngine, "wait");
  const auto start = Clock::now();
  comm_.wait(owing, doing);
  report_.wait_seconds += std::chrono::duration<double>(Clock::now() - start).count();
}

void Execution::finish() {
  if (finished_) return;
  finished_ = true;
  std::sort(report_.pairs.begin(), report_.pairs.end(),
            [](const PairBytes& a, const PairBytes& b) { return a.peer < b.peer; });
  report_.seconds = std::chrono::duration<double>(Clock::now() - started_).count();
}

}  // namespace hybridengine
