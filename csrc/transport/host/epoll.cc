#include "transport/host/epoll.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace hybridengine {
namespace {

epoll_event event_of(uint64_t tag, bool writable) {
  epoll_event event{};
  event.events = writable ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = tag;
  return event;
}

}  // namespace

void Epoll::open() {
  fd_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd_)
    throw TransportError("cannot wait for peers", std::strerror(errno),
                         "Raise the limit on open files (ulimit -n).");
}

void Epoll::add(int fd, uint64_t tag) {
  epoll_event event = event_of(tag, false);
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    throw TransportError("cannot wait for a peer", std::strerror(errno),
                         "Raise fs.epoll.max_user_watches.");
}

void Epoll::want_writable(int fd, uint64_t tag, bool wanted) {
  epoll_event event = event_of(tag, wanted);
  ::epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Epoll::remove(int fd) {
  if (fd >= 0) ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

size_t Epoll::ready(std::span<epoll_event> events) const {
  const int count =
      ::epoll_wait(fd_.get(), events.data(), static_cast<int>(events.size()), /*timeout=*/0);
  return static_cast<size_t>(std::max(count, 0));
}

void Epoll::wait(std::chrono::nanoseconds patience) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience);
  const timespec limit{static_cast<time_t>(seconds.count()),
                       static_cast<long>((patience - seconds).count())};
  pollfd entry{fd_.get(), POLLIN, 0};
  ::ppoll(&entry, 1, &limit, nullptr);
}

}  // namespace hybridengine
