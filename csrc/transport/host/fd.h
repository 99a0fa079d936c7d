// Owners of a file descriptor and of a memory mapping. Each frees what it owns in its destructor.
//
// What they are not: a wrapper of what can be done with either. Called by the transports of one
// host.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <utility>

#include "base/span.h"

namespace hybridengine {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset(int fd = -1) noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

class Mapping {
 public:
  enum class Access { kRead, kReadWrite };

  Mapping() = default;
  Mapping(Mapping&& other) noexcept : span_(std::exchange(other.span_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping() { unmap(); }

  /// Memory of this process alone, zero, page aligned. Throws UsageError where there is no room.
  static Mapping anonymous(size_t bytes);
  /// The first `bytes` of the file behind `fd`, shared with whoever else maps it. Does not keep
  /// `fd`. Throws UsageError where there is no room.
  static Mapping shared(const Fd& fd, size_t bytes, Access access);

  Span span() const { return span_; }
  std::byte* data() const { return span_.data; }
  size_t bytes() const { return span_.bytes; }

 private:
  explicit Mapping(Span span) : span_(span) {}
  static Mapping map(int fd, size_t bytes, Access access);
  void unmap() noexcept;

  Span span_;
};

}  // namespace hybridengine
