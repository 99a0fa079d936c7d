// Memory that can be given to another process of this host: an anonymous file (memfd), reserved in
// full and sealed, so that whoever maps it can never be hit by SIGBUS because it was cut shorter.
//
// It has no name anywhere and is gone with its last descriptor and mapping; or earlier, when its
// maker gives it back. Behind its bytes lies a page with a *mark* that is not zero: giving back
// punches a hole into the whole file, so the mark reads zero and others know. Called by Region
// and shm.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "transport/host/fd.h"

namespace hybridengine {

struct SealedMemory {
  Fd fd;           // to pass on
  Mapping memory;  // the same bytes here, without the mark

  /// Frees the pages, for whoever maps them too. Only by its maker.
  void give_back() noexcept;
};

/// At least `bytes` of zeros, reserved now and not at first touch. `purpose` ("staging") names it
/// in errors and in /proc. Calls `between` every 64 MiB; it may throw. Throws UsageError with the
/// sizes where there is no room.
SealedMemory make_sealed_memory(const char* purpose, size_t bytes,
                                const std::function<void()>& between);
/// The same, of `bytes` of which only the first `reserved_bytes` are reserved. The rest may not be
/// touched before reserve_sealed_memory(), which is false where there is no room.
SealedMemory make_sealed_memory_partly(const char* purpose, size_t bytes, size_t reserved_bytes);
bool reserve_sealed_memory(const SealedMemory& memory, size_t offset, size_t bytes);

/// Maps what a peer passed, `bytes` of it and the mark. Throws UsageError where there is no room.
Mapping map_sealed_memory(const Fd& fd, size_t bytes);
/// Of that mapping, the bytes before the mark.
Span span_before_mark(const Mapping& memory);
/// Whether the maker of a mapping of map_sealed_memory() has given it back.
bool was_given_back(const Mapping& memory);

/// Why a descriptor that a peer passed may not be mapped: it is no sealed memory, or shorter than
/// `bytes` and the mark. "" when it may.
std::string sealed_memory_fault(const Fd& fd, size_t bytes);

/// Whether this kernel has what it takes; "" or a reason.
std::string sealed_memory_missing();

}  // namespace hybridengine
