#include "transport/host/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "transport/host/memory_room.h"

namespace hybridengine {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Reserving is cut into steps of some 20 ms: the kernel undoes a step that a signal interrupts, so
// one of a large size would never end under a periodic signal, and nobody could stop it.
constexpr size_t kReserveStepBytes = 64 << 20;

constexpr uint32_t kMark = 0x6b72616d;  // "mark"

size_t mark_bytes() { return whole_pages(1); }

/// Behind the bytes, where a peer maps them.
std::atomic_ref<uint32_t> mark_of(const Mapping& memory) {
  return std::atomic_ref(
      *reinterpret_cast<uint32_t*>(memory.data() + memory.bytes() - mark_bytes()));
}

Fd try_create(const char* purpose) {
  return Fd(
      ::memfd_create(str_cat("hybridengine-", purpose).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

Fd create(const char* purpose) {
  Fd fd = try_create(purpose);
  if (!fd)
    throw UsageError(str_cat("cannot create shared memory for ", purpose), std::strerror(errno),
                     "Raise the limit on open files (ulimit -n).");
  return fd;
}

[[noreturn]] void throw_no_room(const char* purpose, size_t bytes, int error) {
  throw UsageError(
      str_cat("no room for ", purpose), str_cat(bytes, " bytes wanted, ", std::strerror(error)),
      "Lower bucket_bytes, or enlarge the memory and file size limits of this process.");
}

/// 0 or an errno.
int reserve(int fd, size_t bytes, const std::function<void()>& between) {
  for (size_t done = 0; done < bytes;) {
    if (done > 0) between();
    const size_t step = std::min(kReserveStepBytes, bytes - done);
    const int error = ::posix_fallocate(fd, static_cast<off_t>(done), static_cast<off_t>(step));
    if (error == 0)
      done += step;
    else if (error != EINTR)
      return error;
  }
  return 0;
}

/// Marks, seals and maps what has been reserved.
void seal(SealedMemory& made, size_t bytes) {
  if (::pwrite(made.fd.get(), &kMark, sizeof kMark, static_cast<off_t>(bytes)) < 0)
    throw InternalError("cannot mark shared memory", std::strerror(errno), "Please report it.");
  if (::fcntl(made.fd.get(), F_ADD_SEALS, kSeals) != 0)
    throw InternalError("cannot seal shared memory", std::strerror(errno), "Please report it.");
  made.memory = Mapping::shared(made.fd, bytes, Mapping::Access::kReadWrite);
}

}  // namespace

Span span_before_mark(const Mapping& memory) {
  return memory.data() ? Span{memory.data(), memory.bytes() - mark_bytes()} : Span{};
}

void SealedMemory::give_back() noexcept {
  if (!fd) return;
  ::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
              static_cast<off_t>(memory.bytes() + mark_bytes()));
}

SealedMemory make_sealed_memory(const char* purpose, size_t bytes,
                                const std::function<void()>& between) {
  require_room(purpose, bytes);
  SealedMemory made{create(purpose), {}};
  const size_t whole_bytes = whole_pages(bytes);
  if (const int error = reserve(made.fd.get(), whole_bytes + mark_bytes(), between))
    throw_no_room(purpose, whole_bytes, error);
  seal(made, whole_bytes);
  return made;
}

SealedMemory make_sealed_memory_partly(const char* purpose, size_t bytes, size_t reserved_bytes) {
  require_room(purpose, reserved_bytes);
  SealedMemory made{create(purpose), {}};
  const size_t whole_bytes = whole_pages(bytes);
  int error = reserve(made.fd.get(), whole_pages(reserved_bytes), [] {});
  if (error == 0 && ::ftruncate(made.fd.get(), static_cast<off_t>(whole_bytes + mark_bytes())) != 0)
    error = errno;
  if (error != 0) throw_no_room(purpose, whole_bytes, error);
  seal(made, whole_bytes);
  return made;
}

bool reserve_sealed_memory(const SealedMemory& memory, size_t offset, size_t bytes) {
  int error = EINTR;
  while (error == EINTR)
    error =
        ::posix_fallocate(memory.fd.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  return error == 0;
}

Mapping map_sealed_memory(const Fd& fd, size_t bytes) {
  return Mapping::shared(fd, whole_pages(bytes) + mark_bytes(), Mapping::Access::kReadWrite);
}

bool was_given_back(const Mapping& memory) {
  return mark_of(memory).load(std::memory_order_acquire) != kMark;
}

std::string sealed_memory_fault(const Fd& fd, size_t bytes) {
  if (!fd) return "no descriptor came with it";
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK)) return "its memory is not sealed";
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return std::strerror(errno);
  const uint64_t there = static_cast<uint64_t>(status.st_size);
  if (there < mark_bytes() || there - mark_bytes() < bytes)
    return str_cat("its memory has ", there, " bytes, not ", bytes, " and a mark");
  return "";
}

std::string sealed_memory_missing() {
  const Fd fd = try_create("probe");
  if (!fd) return str_cat("memfd_create does not work here (", std::strerror(errno), ")");
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return str_cat("memory cannot be sealed here (", std::strerror(errno), ")");
  return "";
}

}  // namespace hybridengine
