#include "engine/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace hybridengine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uintptr_t kHugePageBytes = 2 << 20;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack

/// One part of the time is spent, this many parts pass.
constexpr int kShare = 10;
/// So many stretches in a row that fail: memory is short, or the kernel cannot.
constexpr size_t kMostFailures = 8;
/// Bounds how long the destructor waits.
constexpr std::chrono::milliseconds kLongestSleep{20};

bool collapse(Span stretch) { return ::madvise(stretch.data, stretch.bytes, kCollapse) == 0; }

/// The whole huge pages of `memory`, one by one: where memory is short the kernel gives up at the
/// first that fails.
void add_stretches(Span memory, std::vector<Span>& stretches) {
  const auto start = reinterpret_cast<uintptr_t>(memory.data);
  const uintptr_t begin = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uintptr_t end = (start + memory.bytes) / kHugePageBytes * kHugePageBytes;
  for (uintptr_t at = begin; at < end; at += kHugePageBytes)
    stretches.push_back({reinterpret_cast<std::byte*>(at), kHugePageBytes});
}

}  // namespace

size_t collapse_to_huge_pages(Span memory) {
  std::vector<Span> stretches;
  add_stretches(memory, stretches);
  size_t collapsed = 0;
  for (const Span& stretch : stretches)
    if (collapse(stretch))
      collapsed += stretch.bytes;
    else if (collapsed == 0)
      return 0;
  return collapsed;
}

HugePages::HugePages(const std::vector<Span>& memory) {
  for (const Span& each : memory) add_stretches(each, stretches_);
  thread_ = std::thread([this] { work(); });
}

HugePages::~HugePages() {
  change(State::kStopped);
  if (guard_.same_process())
    thread_.join();
  else
    thread_.detach();  // it runs in the parent only
}

void HugePages::pause() {
  if (!change(State::kPaused)) return;
  const std::lock_guard wait_for_stretch(in_hand_);
}

void HugePages::resume() { change(State::kWorking); }

bool HugePages::change(State to) {
  if (!guard_.same_process()) return false;
  for (State now = state_; now != State::kDone;)
    if (state_.compare_exchange_weak(now, to)) {
      state_.notify_all();
      return true;
    }
  return false;
}

void HugePages::work() {
  const Clock::time_point began = Clock::now();
  while (state_ != State::kStopped && next_ < stretches_.size() && failed_ < kMostFailures) {
    const auto early = began + std::chrono::microseconds(spent_us_ * kShare) - Clock::now();
    state_.wait(State::kPaused);
    if (early > Clock::duration(0))
      std::this_thread::sleep_for(std::min<Clock::duration>(early, kLongestSleep));
    else
      collapse_next();
  }
  state_ = State::kDone;
}

void HugePages::collapse_next() {
  const std::lock_guard lock(in_hand_);
  if (state_ != State::kWorking) return;
  const auto start = Clock::now();
  const Span stretch = stretches_[next_++];
  if (collapse(stretch)) {
    collapsed_bytes_ += stretch.bytes;
    failed_ = 0;
  } else {
    ++failed_;
  }
  spent_us_ += std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count();
}

}  // namespace hybridengine
