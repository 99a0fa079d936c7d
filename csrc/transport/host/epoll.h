// Epoll: waits for any of many descriptors, at a cost that does not grow with their number.
//
// Each descriptor carries a tag that comes back with its events. Called by shm.
#pragma once

#include <sys/epoll.h>

#include <chrono>
#include <cstdint>
#include <span>

#include "transport/host/fd.h"

namespace hybridengine {

class Epoll {
 public:
  /// Watches nothing, and may not be used, before open().
  Epoll() = default;
  /// Throws TransportError when out of descriptors.
  void open();

  /// Watches `fd` for something to read. Throws TransportError where the system's limit is reached.
  void add(int fd, uint64_t tag);
  /// Whether to be told of room to write, too.
  void want_writable(int fd, uint64_t tag, bool wanted);
  /// Before `fd` is closed: the kernel would go on watching it if a forked child holds a copy.
  void remove(int fd);

  /// Fills `events` with what is ready now and returns how many. Never waits.
  size_t ready(std::span<epoll_event> events) const;
  /// Until something is ready, `patience` is over or a signal arrives.
  void wait(std::chrono::nanoseconds patience) const;

 private:
  Fd fd_;
};

}  // namespace hybridengine
