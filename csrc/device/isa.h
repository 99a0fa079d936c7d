// Which instruction set the loops of this process use.
//
// The build holds one table of loops per instruction set (x86-64-v2, -v3, -v4; elsewhere one,
// `portable`). The best one that the CPU has is taken, or the one that HYBRIDENGINE_ISA names; the
// choice is made when loops are first needed, or a communicator is made, and kept. Called by
// copy.cc, reduce.cc and bindings.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "device/loops.h"

namespace hybridengine {

/// The chosen loops; one atomic load after the first call. Throws UsageError where HYBRIDENGINE_ISA
/// names a set that this CPU or this build lacks.
const Loops& loops();

/// The name of the chosen set. Throws like loops().
std::string_view isa();

/// The sets that this build has and this CPU can run, best first.
std::vector<std::string_view> usable_isas();

/// The one of `usable` that `wish` asks for: the first for "auto". Throws UsageError with the
/// usable ones when it is not among them.
std::string_view choose_isa(std::string_view wish, std::span<const std::string_view> usable);

/// Reads HYBRIDENGINE_ISA again at the next call of loops(): for tests.
void refresh_isa();

}  // namespace hybridengine
