#include "engine/fresh_memory.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace hybridengine {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How long free memory waits to be used again, and how often that is looked at: together well
/// below the second within which it must be back.
constexpr milliseconds kFreeFor{500};
constexpr milliseconds kLookEvery{200};

/// Free memory of all callers in this process.
class Shelf {
 public:
  /// Of this process: a forked child starts with an empty one, for the thread stays behind.
  static Shelf& instance();

  RegionPtr take(const FreshMemory* owner) {
    const std::lock_guard lock(mutex_);
    const auto found = find(owner);
    if (found == free_.end()) return nullptr;
    RegionPtr region = std::move(found->region);
    free_.erase(found);
    return region;
  }

  /// Keeps one of each owner: an older one goes back to the system.
  void put(const FreshMemory* owner, RegionPtr region) {
    RegionPtr older = take(owner);
    {
      const std::lock_guard lock(mutex_);
      free_.push_back({owner, std::move(region), Clock::now()});
      if (!std::exchange(clearing_, true)) std::thread([this] { clear(); }).detach();
    }
  }

 private:
  struct Free {
    const FreshMemory* owner;
    RegionPtr region;
    Clock::time_point since;
  };

  std::vector<Free>::iterator find(const FreshMemory* owner) {
    return std::ranges::find(free_, owner, &Free::owner);
  }

  /// Gives back what has been free for long enough, until nothing is free.
  void clear() {
    for (bool more = true; more;) {
      std::this_thread::sleep_for(kLookEvery);
      std::vector<Free> old;  // goes without the lock: unmapping takes a while
      const std::lock_guard lock(mutex_);
      const auto expired = std::stable_partition(
          free_.begin(), free_.end(),
          [now = Clock::now()](const Free& each) { return now - each.since < kFreeFor; });
      old.assign(std::make_move_iterator(expired), std::make_move_iterator(free_.end()));
      free_.erase(expired, free_.end());
      more = clearing_ = !free_.empty();
    }
  }

  ForkGuard guard_;
  std::mutex mutex_;
  std::vector<Free> free_;
  bool clearing_ = false;  // a thread runs clear()
};

Shelf& Shelf::instance() {
  static std::atomic<Shelf*> current{new Shelf};  // never destroyed: leases may outlive statics
  Shelf* known = current.load();
  if (known->guard_.same_process()) return *known;
  auto made = std::make_unique<Shelf>();
  return current.compare_exchange_strong(known, made.get()) ? *made.release() : *known;
}

}  // namespace

Lease::Lease(RegionPtr region, std::weak_ptr<FreshMemory> owner)
    : region_(std::move(region)), owner_(std::move(owner)) {}

Lease::~Lease() {
  if (const auto owner = owner_.lock()) owner->take_back(std::move(region_));
}

FreshMemory::~FreshMemory() {
  if (guard_.same_process()) Shelf::instance().take(this);
}

std::shared_ptr<Lease> FreshMemory::lend(const std::function<void()>& between) {
  reserve_seconds_ = 0;
  RegionPtr region = Shelf::instance().take(this);
  if (!region) {
    const auto start = Clock::now();
    region = Region::make("destination tensors", num_bytes_, between);
    reserve_seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return std::make_shared<Lease>(std::move(region), weak_from_this());
}

void FreshMemory::take_back(RegionPtr region) {
  if (guard_.same_process()) Shelf::instance().put(this, std::move(region));
}

}  // namespace hybridengine
