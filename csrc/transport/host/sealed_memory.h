// Memory that can be given to another process of this host: an anonymous file (memfd), reserved in
// full and sealed, so that whoever maps it can never be hit by SIGBUS because it was cut shorter.
//
// It has no name anywhere and is gone with its last descriptor and mapping. Called by shm.
#pragma once

#include <cstddef>
#include <string>

#include "transport/host/fd.h"

namespace hybridengine {

struct SealedMemory {
  Fd fd;           // to pass on
  Mapping memory;  // the same bytes here
};

/// At least `bytes` of zeros, reserved now and not at first touch. `purpose` ("staging") names it
/// in errors and in /proc. Throws UsageError with the sizes where there is no room.
SealedMemory make_sealed_memory(const char* purpose, size_t bytes);

/// Why a descriptor that a peer passed may not be mapped: it is no sealed memory, or shorter than
/// `bytes`. "" when it may.
std::string sealed_memory_fault(const Fd& fd, size_t bytes);

/// Whether this kernel has what it takes; "" or a reason.
std::string sealed_memory_missing();

}  // namespace hybridengine
