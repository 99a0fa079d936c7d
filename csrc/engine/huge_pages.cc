#include "engine/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>

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

uintptr_t page_of(uintptr_t address) { return address / kHugePageBytes * kHugePageBytes; }

Span page_at(uintptr_t address) { return {reinterpret_cast<std::byte*>(address), kHugePageBytes}; }

/// The huge pages that `memory` fills more than half of, one by one: where memory is short the
/// kernel gives up at the first that fails. What else lies in them moves too. Tensors of a model
/// are often smaller than a huge page, but they lie side by side.
std::vector<Span> stretches_of(const std::vector<Span>& memory) {
  std::map<uintptr_t, size_t> filled;  // bytes by huge page
  for (const Span& each : memory) {
    const auto start = reinterpret_cast<uintptr_t>(each.data);
    const uintptr_t end = start + each.bytes;
    for (uintptr_t at = page_of(start); at < end; at += kHugePageBytes)
      filled[at] += std::min(end, at + kHugePageBytes) - std::max(start, at);
  }
  std::vector<Span> stretches;
  for (const auto& [at, bytes] : filled)
    if (bytes > kHugePageBytes / 2) stretches.push_back(page_at(at));
  return stretches;
}

}  // namespace

size_t collapse_to_huge_pages(Span memory) {
  const auto start = reinterpret_cast<uintptr_t>(memory.data);
  size_t collapsed = 0;
  for (uintptr_t at = page_of(start + kHugePageBytes - 1); at < page_of(start + memory.bytes);
       at += kHugePageBytes)
    if (collapse(page_at(at)))
      collapsed += kHugePageBytes;
    else if (collapsed == 0)
      return 0;
  return collapsed;
}

HugePages::HugePages(const std::vector<Span>& memory) : stretches_(stretches_of(memory)) {
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
