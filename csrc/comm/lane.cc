// Small exchanges through lanes.
//
// Waiting has three phases: looking again at once (the peer runs on another core), giving the core
// away (it does not), and sleeping until the peer posts. Only from the third on is there time to
// see whether peers live, so what takes microseconds costs no system call.
#include "comm/lane.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"
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

class Lanes : public SmallExchange {
 public:
  explicit Lanes(Communicator& comm) : comm_(comm), entries_(comm.world()) {}

  std::span<std::byte> entry() override { return lane_of(comm_.rank()).entries[(posted_ + 1) % 2]; }

  Entries exchange(size_t num_bytes, const char* doing) override {
    Lane& mine = lane_of(comm_.rank());
    const uint32_t turn = ++posted_;
    const uint64_t tag = digest_of(doing) << 32;  // what is exchanged rides along with its size
    mine.num_bytes[turn % 2] = tag | num_bytes;
    mine.posted.store(turn, std::memory_order_seq_cst);
    wake_sleepers(mine);
    for (Rank peer = 0; peer < comm_.world(); ++peer) {
      if (peer != comm_.rank()) wait_for_entry(peer, turn, doing);
      const Lane& lane = lane_of(peer);
      const uint64_t shown = lane.num_bytes[turn % 2];
      if (shown >> 32 != tag >> 32) comm_.throw_different_calls(peer);
      const size_t bytes = std::min<uint64_t>(shown & UINT32_MAX, kLaneBytes);
      entries_[peer] = std::span<const std::byte>(lane.entries[turn % 2], bytes);
    }
    return entries_;
  }

 private:
  Lane& lane_of(Rank rank) const {
    return *reinterpret_cast<Lane*>(comm_.fabric().page(rank).data);
  }

  void wake_sleepers(const Lane& mine) const {
    for (Rank peer = 0; peer < comm_.world(); ++peer)
      if (peer != comm_.rank() && lane_of(peer).asleep.load(std::memory_order_seq_cst))
        return futex_wake(mine.posted);
  }

  void wait_for_entry(Rank peer, uint32_t turn, const char* doing) {
    const std::atomic<uint32_t>& posted = lane_of(peer).posted;
    const auto here = [&] { return reached(posted.load(std::memory_order_acquire), turn); };
    if (look_for(here) || yield_for(here)) return;
    const Rank owing[] = {peer};
    std::atomic<uint32_t>& asleep = lane_of(comm_.rank()).asleep;
    comm_.wait_until(here, owing, doing, true, [&] {
      asleep.store(1, std::memory_order_seq_cst);
      const uint32_t seen = posted.load(std::memory_order_seq_cst);
      if (!reached(seen, turn)) futex_wait(posted, seen);
      asleep.store(0, std::memory_order_relaxed);
    });
    comm_.made_progress();
  }

  Communicator& comm_;
  uint32_t posted_ = 0;
  std::vector<std::span<const std::byte>> entries_;
};

}  // namespace

std::unique_ptr<SmallExchange> make_lanes(Communicator& comm) {
  return std::make_unique<Lanes>(comm);
}

}  // namespace hybridengine
