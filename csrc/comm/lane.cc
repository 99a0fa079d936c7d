// Small exchanges between all ranks through their lanes.
//
// Waiting has three phases: looking again at once (the peer runs on another core), giving the core
// away (it does not), and sleeping until the peer posts. Only from the third on is there time to
// see whether peers live, so what takes microseconds costs no system call.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/communicator.h"

namespace hybridengine {
namespace {

using Clock = std::chrono::steady_clock;

// In time and not in looks: what a look costs depends on the machine. The first is about what a
// peer on another core takes to post; where it shares this one, that much is lost at each wait. The
// second is what waking a sleeper costs.
constexpr std::chrono::microseconds kLooking{2}, kYielding{50};
constexpr int kLooksPerTime = 16;  // reading the clock costs as much as a few looks
constexpr long kSleepNs = 20'000'000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Until `word` changes from `value`, or a while has passed.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t value) {
  const timespec patience{0, kSleepNs};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &patience, nullptr, 0);
}

void futex_wake(const std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

/// Looks until `here()`, for a moment. Whether it was in time.
template <class Here>
bool look_for(const Here& here) {
  const auto until = Clock::now() + kLooking;
  do {
    for (int look = 0; look < kLooksPerTime; ++look) {
      if (here()) return true;
      pause();
    }
  } while (Clock::now() < until);
  return false;
}

/// The same while others have the core.
template <class Here>
bool yield_for(const Here& here) {
  const auto until = Clock::now() + kYielding;
  do {
    if (here()) return true;
    std::this_thread::yield();
  } while (Clock::now() < until);
  return false;
}

/// Whether `posted` has come to `wanted`; both may wrap.
bool reached(uint32_t posted, uint32_t wanted) {
  return static_cast<int32_t>(posted - wanted) >= 0;
}

}  // namespace

std::span<std::byte> Communicator::lane_entry() {
  check_alive();
  return transport_->board(rank_)->lane.entries[(posted_ + 1) % 2];
}

std::span<const std::span<const std::byte>> Communicator::exchange(size_t num_bytes,
                                                                   const char* doing) {
  check_alive();
  Lane& mine = transport_->board(rank_)->lane;
  const uint32_t turn = ++posted_;
  mine.num_bytes[turn % 2] = num_bytes;
  mine.posted.store(turn, std::memory_order_seq_cst);
  for (Rank peer = 0; peer < world_; ++peer)
    if (peer != rank_ && transport_->board(peer)->lane.asleep.load(std::memory_order_seq_cst)) {
      futex_wake(mine.posted);
      break;
    }
  entries_.resize(world_);
  for (Rank peer = 0; peer < world_; ++peer) {
    if (peer != rank_) wait_for_entry(peer, turn, doing);
    const Lane& lane = transport_->board(peer)->lane;
    const size_t bytes = std::min<uint64_t>(lane.num_bytes[turn % 2], kLaneBytes);
    entries_[peer] = std::span<const std::byte>(lane.entries[turn % 2], bytes);
  }
  return entries_;
}

void Communicator::wait_for_entry(Rank peer, uint32_t turn, const char* doing) {
  const std::atomic<uint32_t>& posted = transport_->board(peer)->lane.posted;
  const auto here = [&] { return reached(posted.load(std::memory_order_acquire), turn); };
  if (look_for(here) || yield_for(here)) return;
  Board* board = transport_->board(rank_);
  const Rank owing[] = {peer};
  moved_at_ = std::chrono::steady_clock::now();
  board->waiting_for = peer;
  while (!here()) {
    between();
    pump(std::chrono::microseconds(0));
    if (here()) break;
    for (Rank other = 0; other < world_; ++other)
      if (!peers_[other].blobs.empty() && peers_[other].blobs.front().call == call_)
        throw_different_calls(other);
    for (const Arrival& arrival : inbox_)
      if (arrival.message.call == call_) throw_different_calls(arrival.peer);
    check_lost(owing);
    check_silence(owing, doing);
    board->lane.asleep.store(1, std::memory_order_seq_cst);
    const uint32_t seen = posted.load(std::memory_order_seq_cst);
    if (!reached(seen, turn)) futex_wait(posted, seen);
    board->lane.asleep.store(0, std::memory_order_relaxed);
  }
  board->waiting_for = -1;
  made_progress();
}

}  // namespace hybridengine
