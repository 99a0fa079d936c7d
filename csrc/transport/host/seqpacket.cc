#include "transport/host/seqpacket.h"

#include <sys/random.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace hybridengine {
namespace {

// Room for several frames of the largest size; the kernel's default on small systems is less.
constexpr int kSendBufferBytes = 512 << 10;
constexpr int kBacklog = 4096;  // ranks that connect at the same moment; the kernel may cut it
constexpr size_t kMaxFds = 2;   // what fits into the padding of one

Fd make_socket() {
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket)
    throw TransportError("cannot open a Unix socket", std::strerror(errno),
                         "Raise the limit on open files (ulimit -n).");
  return socket;
}

/// The address of an abstract name: a zero byte, then the name without a terminator.
struct Address {
  explicit Address(const std::string& name) {
    ensure(name.size() < sizeof(path.sun_path), "the name of a listener is too long",
           [&] { return name; });
    path.sun_family = AF_UNIX;
    std::memcpy(path.sun_path + 1, name.data(), name.size());
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&path); }

  sockaddr_un path{};
  socklen_t bytes = 0;
};

void widen(const Fd& socket) {
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof kSendBufferBytes);
}

std::string unguessable_name() {
  std::array<unsigned char, 16> random;
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    throw TransportError("cannot get random bytes", std::strerror(errno), "");
  std::string name = "hybridengine-";
  for (const unsigned char byte : random) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    name += digits;
  }
  return name;
}

/// Owns the descriptors that came with `head`; keeps the first.
Fd take_passed(msghdr& head, size_t& count) {
  Fd first;
  for (cmsghdr* part = CMSG_FIRSTHDR(&head); part; part = CMSG_NXTHDR(&head, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t fds = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t index = 0; index < fds; ++index, ++count) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + index * sizeof fd, sizeof fd);
      Fd owner(fd);
      if (count == 0) first = std::move(owner);
    }
  }
  return first;
}

/// Why a datagram is no frame; "" when it is one.
std::string fault(const FrameHeader& header, size_t bytes, int flags, size_t num_fds) {
  if (flags & MSG_TRUNC) return "a message longer than any";
  if (bytes < sizeof header) return str_cat("a message of ", bytes, " bytes");
  if (!known_kind(header.kind)) return str_cat("a message of kind ", header.kind);
  if (header.text_bytes != bytes - sizeof header)
    return str_cat("a text of ", bytes - sizeof header, " bytes said to have ", header.text_bytes);
  if (num_fds > 1) return str_cat(num_fds, " descriptors at once");
  return "";
}

}  // namespace

Listener listen_unguessable() {
  Listener listener{make_socket(), unguessable_name()};
  const Address address(listener.name);
  if (::bind(listener.fd.get(), address.get(), address.bytes) != 0 ||
      ::listen(listener.fd.get(), kBacklog) != 0)
    throw TransportError("cannot listen on a Unix socket", std::strerror(errno), "");
  return listener;
}

ucred credentials(const Fd& socket) {
  ucred found{};
  socklen_t bytes = sizeof found;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &found, &bytes) != 0)
    throw TransportError("cannot tell who is at the other end", std::strerror(errno), "");
  return found;
}

Connected connect_to(const std::string& name) {
  Connected made{make_socket(), 0};
  const Address address(name);
  while (::connect(made.socket.get(), address.get(), address.bytes) != 0) {
    if (errno == EINTR) continue;
    return {Fd(), errno};
  }
  widen(made.socket);
  return made;
}

Fd accept_from(const Fd& listener) {
  for (;;) {
    Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      widen(socket);
      return socket;
    }
    if (errno == EAGAIN) return Fd();
    if (errno != EINTR && errno != ECONNABORTED)
      throw TransportError("cannot accept a connection", std::strerror(errno),
                           "Raise the limit on open files (ulimit -n).");
  }
}

Sent send_frame(const Fd& socket, const Message& message, uint64_t after, const Fd* passed) {
  FrameHeader header = header_of(message);
  header.after = after;
  iovec parts[2] = {{&header, sizeof header},
                    {const_cast<char*>(message.text.data()), message.text.size()}};
  msghdr head{};
  head.msg_iov = parts;
  head.msg_iovlen = 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (passed) {
    head.msg_control = control;
    head.msg_controllen = sizeof control;
    cmsghdr* part = CMSG_FIRSTHDR(&head);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    const int fd = passed->get();
    std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
  }
  while (::sendmsg(socket.get(), &head, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error == EMSGSIZE)
      throw TransportError("this system does not let a message through",
                           str_cat(sizeof header + message.text.size(), " bytes"),
                           "Raise net.core.wmem_max to at least 65536.");
    if (error == ETOOMANYREFS) return Sent::kCrowded;
    const bool full = error == EAGAIN || error == ENOBUFS || error == ENOMEM;
    return full ? Sent::kFull : Sent::kBroken;
  }
  return Sent::kDone;
}

Received receive_frame(const Fd& socket) {
  char buffer[sizeof(FrameHeader) + kMaxTextBytes];
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  iovec part{buffer, sizeof buffer};
  // A peer that closes with unread messages leaves one ECONNRESET ahead of what it had sent.
  for (int resets = 0;;) {
    msghdr head{};
    head.msg_iov = &part;
    head.msg_iovlen = 1;
    head.msg_control = control;
    head.msg_controllen = sizeof control;
    const ssize_t count = ::recvmsg(socket.get(), &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count == 0) return {Received::Kind::kClosed, {}, {}, "", 0};
    if (count < 0) {
      if (errno == EINTR || (errno == ECONNRESET && resets++ == 0)) continue;
      const bool nothing = errno == EAGAIN;
      return {nothing ? Received::Kind::kNothing : Received::Kind::kClosed, {}, {}, "", 0};
    }
    size_t num_fds = 0;
    Fd passed = take_passed(head, num_fds);
    FrameHeader header;
    const auto bytes = static_cast<size_t>(count);
    std::memcpy(&header, buffer, std::min(bytes, sizeof header));
    const std::string reason = fault(header, bytes, head.msg_flags, num_fds);
    if (!reason.empty()) return {Received::Kind::kNonsense, {}, {}, reason, 0};
    if (head.msg_flags & MSG_CTRUNC)
      return {Received::Kind::kNoDescriptor,
              {},
              {},
              "memory, and here no descriptor is left for it",
              0};
    const std::string_view text(buffer + sizeof header, header.text_bytes);
    return {Received::Kind::kFrame, message_of(header, text), std::move(passed), "", header.after};
  }
}

}  // namespace hybridengine
