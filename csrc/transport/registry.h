// The transports of this build, in order of preference. The only place that lists them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/endpoint.h"
#include "transport/fabric.h"

namespace hybridengine {

/// Whether a transport can be used here, and if not why and what would help.
struct Probe {
  bool available = false;
  std::string reason;  // "" when available
};

struct TransportEntry {
  const char* name;
  const char* family;   // those of one family meet each other: a rank uses one of them
  const char* summary;  // one line for `info`
  Caps caps;
  Probe (*probe)();
  /// `world` ranks, this one is `rank`. `group` keeps communicators of one process apart.
  std::unique_ptr<Endpoint> (*make)(Rank rank, int32_t world, const std::string& group);
};

std::span<const TransportEntry> transports();

/// The media of `names` ("shm", or in order of preference "loopback,shm"). "auto": of each family
/// that reaches processes the first one that is available; rank 0 warns of better ones that are
/// not, once in its process. One that is not available here: UsageError with its reason and remedy.
/// Unknown: UsageError with the legal names. Two of one family: UsageError.
std::unique_ptr<Fabric> make_fabric(const std::string& names, Rank rank, int32_t world,
                                    const std::string& group);

}  // namespace hybridengine
