// PageHint: asks for huge pages under tables of many megabytes.
#pragma once

#include <cstddef>

namespace hybridengine {

/// Asks the system for huge pages under fresh memory: the first touch of each small page would cost
/// more than filling it. Only a hint: does nothing where it is refused, or the memory is small.
void prefer_huge_pages(void* data, size_t bytes);

}  // namespace hybridengine
