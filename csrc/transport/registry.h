// The transports of this build, in order of preference. The only place that lists them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace hybridengine {

/// Whether a transport can be used here, and if not why and what would help.
struct Probe {
  bool available = false;
  std::string reason;  // "" when available
};

struct TransportEntry {
  const char* name;
  const char* summary;  // one line for `info`
  Caps caps;
  Probe (*probe)();
  /// `world` ranks, this one is `rank`. `group` keeps communicators of one process apart.
  std::unique_ptr<Transport> (*make)(Rank rank, int32_t world, const std::string& group);
};

std::span<const TransportEntry> transports();

/// The entry of `name`, or for "auto" the first available one that reaches processes; `rank`, which
/// will use it, warns of better ones that are not available if it is rank 0, once in its process.
/// A transport that is not available here: UsageError with its reason and remedy. Unknown:
/// UsageError with the legal names.
const TransportEntry& find_transport(const std::string& name, Rank rank);

}  // namespace hybridengine
