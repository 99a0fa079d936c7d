#include "transport/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "base/error.h"

namespace hybridengine {
namespace {

std::atomic<uint64_t> forks{0};  // how many forks lie between this process and the first one

uint64_t generation() {
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

ForkGuard::ForkGuard() : generation_(generation()) {}

bool ForkGuard::same_process() const {
  return forks.load(std::memory_order_relaxed) == generation_;
}

void ForkGuard::check(const char* transport) const {
  if (same_process()) return;
  throw TransportError(str_cat("a ", transport, " endpoint was made before fork"),
                       str_cat("process ", ::getpid(), " is a child of its owner"),
                       "Make a new communicator in the child, or start the child with spawn.");
}

}  // namespace hybridengine
