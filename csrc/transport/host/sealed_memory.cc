#include "transport/host/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "transport/host/memory_room.h"

namespace hybridengine {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Reserving is cut into steps because the kernel undoes a step that a signal interrupts: one step
// of a large size would never end under a periodic signal.
constexpr size_t kReserveStepBytes = 64 << 20;

int create(const char* purpose) {
  return ::memfd_create(str_cat("hybridengine-", purpose).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

/// 0 or an errno.
int reserve(int fd, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t step = std::min(kReserveStepBytes, bytes - done);
    const int error = ::posix_fallocate(fd, static_cast<off_t>(done), static_cast<off_t>(step));
    if (error == 0)
      done += step;
    else if (error != EINTR)
      return error;
  }
  return 0;
}

}  // namespace

SealedMemory make_sealed_memory(const char* purpose, size_t bytes) {
  require_room(purpose, bytes);
  const size_t reserved_bytes = whole_pages(bytes);
  SealedMemory made;
  made.fd.reset(create(purpose));
  if (!made.fd)
    throw UsageError(str_cat("cannot create shared memory for ", purpose), std::strerror(errno),
                     "Raise the limit on open files (ulimit -n).");
  if (const int error = reserve(made.fd.get(), reserved_bytes))
    throw UsageError(
        str_cat("no room for ", purpose),
        str_cat(reserved_bytes, " bytes wanted, ", std::strerror(error)),
        "Lower bucket_bytes, or enlarge the memory and file size limits of this process.");
  if (::fcntl(made.fd.get(), F_ADD_SEALS, kSeals) != 0)
    throw InternalError("cannot seal shared memory", std::strerror(errno), "Please report it.");
  made.memory = Mapping::shared(made.fd, reserved_bytes, Mapping::Access::kReadWrite);
  return made;
}

std::string sealed_memory_fault(const Fd& fd, size_t bytes) {
  if (!fd) return "no descriptor came with it";
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK)) return "its memory is not sealed";
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return std::strerror(errno);
  if (static_cast<uint64_t>(status.st_size) < bytes)
    return str_cat("its memory has ", status.st_size, " bytes, not ", bytes);
  return "";
}

std::string sealed_memory_missing() {
  const Fd fd(create("probe"));
  if (!fd) return str_cat("memfd_create does not work here (", std::strerror(errno), ")");
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return str_cat("memory cannot be sealed here (", std::strerror(errno), ")");
  return "";
}

}  // namespace hybridengine
