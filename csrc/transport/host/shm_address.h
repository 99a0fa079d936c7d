// ShmAddress: where a rank listens, and who and where it is, so that a pair that cannot share
// memory is refused with the reason before anything is tried. Called by shm.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/blob.h"
#include "base/rank.h"

namespace hybridengine {

/// What two processes must have in common to meet: one kernel and the same namespaces.
struct HostIdentity {
  std::array<char, 40> boot_id{};  // text of the kernel, padded with zeros
  uint64_t network_namespace = 0;  // the names of listeners live in it
  uint64_t user_namespace = 0;     // uids mean the same
  uint64_t pid_namespace = 0;      // pids mean the same

  bool operator==(const HostIdentity& other) const = default;
};

struct ShmAddress {
  HostIdentity host;
  uint32_t uid = 0;
  int32_t pid = 0;
  std::array<char, 56> name{};  // of the listener, in the abstract namespace of Unix sockets

  bool operator==(const ShmAddress& other) const = default;
};

/// Of this process, listening at `name` (shorter than the field). Throws UsageError without /proc.
ShmAddress own_shm_address(const std::string& name);
/// Why /proc does not tell who this host is; "" when it does.
std::string host_identity_missing();

Blob encode(const ShmAddress& address);
/// Throws UsageError that names `rank` when `blob` is anything else than the result of encode().
ShmAddress decode_shm_address(const Blob& blob, Rank rank);

/// Why the two cannot meet; "" where they can.
std::string what_sets_apart(const ShmAddress& own, const ShmAddress& peer);
/// Throws TransportError that names `rank` and the difference unless `own` and `peer` can meet.
void require_reachable(const ShmAddress& own, const ShmAddress& peer, Rank rank);

}  // namespace hybridengine
