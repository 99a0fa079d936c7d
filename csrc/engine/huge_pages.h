// Huge pages for tensors that already exist.
//
// Reading another process's memory pays for every page; with 2 MB pages it runs at the speed of a
// plain copy. Backing memory with them costs 0.2 to 5 ms per MB once, so it is for what is read at
// every run, is done by a thread between runs, and takes at most a tenth of the time that passes:
// a loop that does nothing else is never slowed down by more than that, whether or not it lasts.
//
// Called by bindings.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/span.h"
#include "transport/fork_guard.h"

namespace hybridengine {

/// Asks the kernel to back the whole 2 MB stretches of `memory` with huge pages, now
/// (MADV_COLLAPSE, Linux 6.1). The contents stay. Returns the bytes that are backed so afterwards;
/// 0 where the kernel cannot.
size_t collapse_to_huge_pages(Span memory);

class HugePages {
 public:
  /// Starts to collapse the huge pages that `memory` fills more than half of. Addresses that are
  /// gone by the time they are reached are passed over, so the memory need not stay.
  explicit HugePages(const std::vector<Span>& memory);
  ~HugePages();  // stops: waits for the one stretch of 2 MB in hand

  /// Around a run, during which nothing is collapsed. pause() waits as the destructor does.
  void pause();
  void resume();

  bool done() const { return state_ == State::kDone; }
  size_t collapsed_bytes() const { return collapsed_bytes_; }
  double seconds() const { return static_cast<double>(spent_us_) * 1e-6; }

 private:
  enum class State : uint8_t { kWorking, kPaused, kStopped, kDone };

  /// Where the work is not done and this is not a forked child, which has no thread.
  bool change(State to);
  void work();
  void collapse_next();

  ForkGuard guard_;
  std::vector<Span> stretches_;
  size_t next_ = 0, failed_ = 0;
  std::atomic<size_t> collapsed_bytes_{0};
  std::atomic<int64_t> spent_us_{0};
  std::atomic<State> state_{State::kWorking};
  std::mutex in_hand_;  // held while a stretch is collapsed
  std::thread thread_;
};

}  // namespace hybridengine
