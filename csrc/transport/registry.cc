#include "transport/registry.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "base/log.h"

namespace hybridengine {

extern const TransportEntry kCma, kShm, kLoopback, kNull;
#ifdef HYBRIDENGINE_EXTRA_TRANSPORT  // from outside of this folder: see CMakeLists.txt
extern const TransportEntry HYBRIDENGINE_EXTRA_TRANSPORT;
#endif

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

using Entries = std::vector<const TransportEntry*>;

bool has_family(const Entries& entries, const TransportEntry& one) {
  return std::ranges::any_of(entries, [&](const TransportEntry* each) {
    return std::string_view(each->family) == one.family;
  });
}

Entries find_auto(Rank rank) {
  Entries found;
  std::string reasons;
  for (const TransportEntry& entry : transports()) {
    if (!entry.caps.processes || has_family(found, entry)) continue;
    const Probe probe = entry.probe();
    if (probe.available) {
      warn_of_fallback(entry, reasons, rank);
      found.push_back(&entry);
      continue;
    }
    reasons += str_cat(reasons.empty() ? "" : "; ", entry.name, ": ", probe.reason);
  }
  if (!found.empty()) return found;
  throw UsageError("no transport reaches other processes here", reasons,
                   "Mend one of these, or run all ranks as threads with transport=loopback.");
}

const TransportEntry& find_one(std::string_view name) {
  const auto table = transports();
  const auto entry = std::ranges::find_if(table, [&](auto& one) { return name == one.name; });
  if (entry == table.end())
    throw UsageError("there is no such transport", str_cat("'", name, "'"),
                     str_cat("Use one of: ", names(), "; or several, separated by commas."));
  const Probe probe = entry->probe();
  if (!probe.available)
    throw UsageError(
        str_cat("transport ", name, " is not available here"), probe.reason,
        str_cat("Mend that, or set HYBRIDENGINE_TRANSPORT to another of: ", names(), "."));
  return *entry;
}

Entries find_named(std::string_view list) {
  Entries found;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const TransportEntry& entry = find_one(list.substr(begin, end - begin));
    if (has_family(found, entry))
      throw UsageError("two transports of one family are asked for", str_cat("'", list, "'"),
                       str_cat("Leave ", entry.name, " or the one before out."));
    found.push_back(&entry);
    begin = end + 1;
  }
  return found;
}

}  // namespace

std::span<const TransportEntry> transports() {
  static const TransportEntry table[] = {
      kCma,
      kShm,
      kLoopback,
      kNull,
#ifdef HYBRIDENGINE_EXTRA_TRANSPORT
      HYBRIDENGINE_EXTRA_TRANSPORT,
#endif
  };
  return table;
}

std::unique_ptr<Fabric> make_fabric(const std::string& names, Rank rank, int32_t world,
                                    const std::string& group) {
  std::vector<Fabric::Member> members;
  for (const TransportEntry* entry : names == "auto" ? find_auto(rank) : find_named(names))
    members.push_back({entry->family, entry->make(rank, world, group)});
  return std::make_unique<Fabric>(std::move(members), rank, world);
}

}  // namespace hybridengine
