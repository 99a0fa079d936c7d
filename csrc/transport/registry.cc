#include "transport/registry.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "base/log.h"

namespace hybridengine {

extern const TransportEntry kCma, kShm, kLoopback, kNull;

namespace {

std::string names() {
  std::string text = "auto";
  for (const TransportEntry& entry : transports()) text += str_cat(", ", entry.name);
  return text;
}

/// Once in a process, and by rank 0 alone: where all ranks lack it, nobody needs to read it from
/// each.
void warn_of_fallback(const TransportEntry& taken, const std::string& reasons, Rank rank) {
  static std::once_flag once;
  if (rank != 0 || reasons.empty()) return;
  std::call_once(once, [&] {
    log(LogLevel::kWarn, Subsystem::kTransport, taken.name,
        " is used, since a faster transport is ", "not available: ", reasons,
        ". To choose it without this warning set ", "HYBRIDENGINE_TRANSPORT=", taken.name, ".");
  });
}

const TransportEntry& find_auto(Rank rank) {
  std::string reasons;
  for (const TransportEntry& entry : transports()) {
    if (!entry.caps.processes) continue;
    const Probe probe = entry.probe();
    if (probe.available) {
      warn_of_fallback(entry, reasons, rank);
      return entry;
    }
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

const TransportEntry& find_transport(const std::string& name, Rank rank) {
  if (name == "auto") return find_auto(rank);
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
