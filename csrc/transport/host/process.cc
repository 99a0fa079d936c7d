#include "transport/host/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>

#include <cerrno>
#include <thread>

namespace hybridengine {
namespace {

bool number_unused(int pid) { return ::kill(pid, 0) != 0 && errno == ESRCH; }

}  // namespace

Process Process::watch(int pid) {
  Process process;
  process.pid_ = pid;
  process.pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  process.gone_ = !process.pidfd_ && number_unused(pid);
  return process;
}

bool Process::ended(std::chrono::milliseconds patience) const {
  using Clock = std::chrono::steady_clock;
  if (gone_) return true;
  const auto until = Clock::now() + patience;
  for (;;) {
    pollfd poll_entry{pidfd_.get(), POLLIN, 0};
    const bool over = pidfd_ ? ::poll(&poll_entry, 1, 0) == 1 : number_unused(pid_);
    if (over || Clock::now() >= until) return over;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace hybridengine
