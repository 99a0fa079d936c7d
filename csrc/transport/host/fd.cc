#include "transport/host/fd.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace hybridengine {

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    unmap();
    span_ = std::exchange(other.span_, {});
  }
  return *this;
}

Mapping Mapping::anonymous(size_t bytes) { return map(-1, bytes, Access::kReadWrite); }

Mapping Mapping::shared(const Fd& fd, size_t bytes, Access access) {
  return map(fd.get(), bytes, access);
}

Mapping Mapping::map(int fd, size_t bytes, Access access) {
  if (bytes == 0) return {};
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* data = ::mmap(nullptr, bytes, protection, flags, fd, 0);
  if (data == MAP_FAILED)
    throw UsageError("cannot map memory", str_cat(bytes, " bytes, ", std::strerror(errno)),
                     "Lower bucket_bytes, or raise the limits shown by `ulimit -v`.");
  return Mapping(Span{static_cast<std::byte*>(data), bytes});
}

void Mapping::unmap() noexcept {
  if (span_.data) ::munmap(span_.data, span_.bytes);
  span_ = {};
}

}  // namespace hybridengine
