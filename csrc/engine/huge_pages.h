// Huge pages for tensors that already exist.
//
// Reading another process's memory pays for every page; with 2 MB pages it runs at the speed of a
// plain copy. Collapsing costs about 5 ms per MB once, so it is for what moves at every step.
#pragma once

#include "base/span.h"

namespace hybridengine {

/// Asks the kernel to back the whole 2 MB stretches of `memory` with huge pages, now
/// (MADV_COLLAPSE, Linux 6.1). The contents stay. Returns the bytes that are backed so afterwards;
/// 0 where the kernel cannot.
size_t collapse_to_huge_pages(Span memory);

}  // namespace hybridengine
