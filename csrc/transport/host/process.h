// Process: watches another process of this host, to tell its death from a closed connection.
//
// Held as a pidfd, so that a number that the kernel gives to a new process is never mistaken for
// the old one; where the kernel has no pidfd, by number. Called by shm.
#pragma once

#include <chrono>

#include "transport/host/fd.h"

namespace hybridengine {

class Process {
 public:
  Process() = default;
  /// Starts to watch. A process that is gone already counts as ended.
  static Process watch(int pid);

  int pid() const { return pid_; }
  /// Readable once the process has ended; -1 where the kernel cannot tell.
  int fd() const { return pidfd_.get(); }
  /// Waits up to `patience` for the end. A killed process closes its sockets shortly before it
  /// ends.
  bool ended(std::chrono::milliseconds patience) const;
  /// Stops to watch and frees the descriptor.
  void forget() { pidfd_.reset(); }

 private:
  int pid_ = 0;
  bool gone_ = false;
  Fd pidfd_;
};

}  // namespace hybridengine
