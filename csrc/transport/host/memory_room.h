// Whether the machine has room for memory that is about to be reserved.
//
// Reserving more than there is does not fail by itself: the kernel ends some process instead. So
// the size is compared first with what the machine says is available. Called by whatever gives
// staging.
#pragma once

#include <cstddef>

namespace hybridengine {

/// Throws UsageError with both sizes where `bytes` of `purpose` ("staging") is more than the memory
/// and swap that are available now. Passes where /proc does not tell.
void require_room(const char* purpose, size_t bytes);

/// `bytes` rounded up to whole pages. Call require_room() first: sizes near SIZE_MAX would wrap.
size_t whole_pages(size_t bytes);

}  // namespace hybridengine
