#include "device/isa.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "base/env.h"
#include "base/error.h"
#include "device/loops/table.h"

namespace hybridengine {
namespace {

struct Entry {
  std::string_view name;
  bool (*usable)();
  const Loops* loops;
};

// Best first.
#ifdef HE_X86_ISAS
const Entry kEntries[] = {
    {"x86-64-v4", [] { return __builtin_cpu_supports("x86-64-v4") != 0; }, &x86_64_v4::kLoops},
    {"x86-64-v3", [] { return __builtin_cpu_supports("x86-64-v3") != 0; }, &x86_64_v3::kLoops},
    {"x86-64-v2", [] { return __builtin_cpu_supports("x86-64-v2") != 0; }, &x86_64_v2::kLoops},
};
#else
const Entry kEntries[] = {{"portable", [] { return true; }, &portable::kLoops}};
#endif

std::atomic<const Entry*> chosen{nullptr};

const Entry& entry() {
  if (const Entry* known = chosen.load(std::memory_order_acquire)) return *known;
  const std::vector<std::string_view> usable = usable_isas();
  const std::string_view name = choose_isa(env_isa(), usable);
  const Entry* found = std::find_if(std::begin(kEntries), std::end(kEntries),
                                    [&](const Entry& each) { return each.name == name; });
  chosen.store(found, std::memory_order_release);
  return *found;
}

}  // namespace

const Loops& loops() { return *entry().loops; }

std::string_view isa() { return entry().name; }

std::vector<std::string_view> usable_isas() {
  std::vector<std::string_view> names;
  for (const Entry& each : kEntries)
    if (each.usable()) names.push_back(each.name);
  return names;
}

std::string_view choose_isa(std::string_view wish, std::span<const std::string_view> usable) {
  if (usable.empty())
    throw UsageError("no loops for this CPU", "it lacks x86-64-v2 (SSE4.2 and POPCNT)",
                     "Use a CPU made after 2009; give a virtual machine the CPU of its host.");
  if (wish == "auto") return usable.front();
  const auto found = std::find(usable.begin(), usable.end(), wish);
  if (found != usable.end()) return *found;
  std::string names;
  for (const std::string_view name : usable) names += str_cat(names.empty() ? "" : ", ", name);
  throw UsageError(str_cat("HYBRIDENGINE_ISA=", wish, " cannot be used here"),
                   str_cat("this CPU and this build have ", names),
                   "Use one of them, or auto for the best.");
}

void refresh_isa() { chosen.store(nullptr, std::memory_order_release); }

}  // namespace hybridengine
