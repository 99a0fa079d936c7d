#include "transport/registry.h"

#include <algorithm>

#include "base/error.h"

namespace hybridengine {

extern const TransportEntry kCma, kShm, kLoopback, kNull;

namespace {

std::string names() {
  std::string text = "auto";
  for (const TransportEntry& entry : transports()) text += str_cat(", ", entry.name);
  return text;
}

const TransportEntry& find_auto() {
  std::string reasons;
  for (const TransportEntry& entry : transports()) {
    if (!entry.caps.processes) continue;
    const Probe probe = entry.probe();
    if (probe.available) return entry;
    reasons += str_cat(reasons.empty() ? "" : "; ", entry.name, ": ", probe.reason);
  }
  throw UsageError("no transport reaches other processes here", reasons,
                   "Mend one of these, or run all ranks as threads with transport=loopback.");
}

}  // namespace

std::span<const TransportEntry> transports() {
  static const TransportEntry table[] = {kCma, kShm, kLoopback, kNull};
  return table;
}

const TransportEntry& find_transport(const std::string& name) {
  if (name == "auto") return find_auto();
  const auto table = transports();
  const auto entry = std::ranges::find_if(table, [&](auto& one) { return name == one.name; });
  if (entry == table.end())
    throw UsageError("there is no such transport", str_cat("'", name, "'"),
                     str_cat("Use one of: ", names(), "."));
  const Probe probe = entry->probe();
  if (!probe.available)
    throw UsageError(
        str_cat("transport ", name, " is not available here"), probe.reason,
        str_cat("Mend that, or set HYBRIDENGINE_TRANSPORT to another of: ", names(), "."));
  return *entry;
}

}  // namespace hybridengine
