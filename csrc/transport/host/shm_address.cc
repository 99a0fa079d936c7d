#include "transport/host/shm_address.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <type_traits>

#include "base/error.h"
#include "base/hash.h"

namespace hybridengine {
namespace {

constexpr uint64_t kMagic = 0x31'72'64'61'6d'68'73;  // "shmadr1"; its digit is the version
constexpr const char* kBootIdPath = "/proc/sys/kernel/random/boot_id";

static_assert(std::is_trivially_copyable_v<ShmAddress> && sizeof(ShmAddress) % 8 == 0);

std::string boot_id() {
  std::string text;
  std::ifstream(kBootIdPath) >> text;
  return text;
}

uint64_t namespace_number(const char* path) {
  struct stat status;
  return ::stat(path, &status) == 0 ? status.st_ino : 0;
}

template <size_t size>
void store(std::array<char, size>& field, const std::string& text) {
  ensure(text.size() < size, "a field of an address is too short", [&] { return text; });
  std::memcpy(field.data(), text.data(), text.size());
}

HostIdentity own_host() {
  HostIdentity host;
  store(host.boot_id, boot_id().substr(0, host.boot_id.size() - 1));
  host.network_namespace = namespace_number("/proc/self/ns/net");
  host.user_namespace = namespace_number("/proc/self/ns/user");
  host.pid_namespace = namespace_number("/proc/self/ns/pid");
  return host;
}

}  // namespace

ShmAddress own_shm_address(const std::string& name) {
  if (const std::string missing = host_identity_missing(); !missing.empty())
    throw UsageError("shm does not work here", missing, "Mount /proc, or use another transport.");
  ShmAddress address;
  address.host = own_host();
  address.uid = ::geteuid();
  address.pid = ::getpid();
  store(address.name, name);
  return address;
}

std::string host_identity_missing() {
  if (boot_id().empty()) return str_cat(kBootIdPath, " cannot be read");
  if (!namespace_number("/proc/self/ns/net")) return "/proc/self/ns cannot be read";
  return "";
}

Blob encode(const ShmAddress& address) {
  BlobWriter writer;
  writer.put(kMagic);
  Blob blob = std::move(writer).take();
  blob.append(reinterpret_cast<const char*>(&address), sizeof address);
  const uint64_t digest = digest_of(blob);
  blob.append(reinterpret_cast<const char*>(&digest), sizeof digest);
  return blob;
}

ShmAddress decode_shm_address(const Blob& blob, Rank rank) {
  ShmAddress address;
  if (blob.size() == 2 * sizeof(uint64_t) + sizeof address) {
    std::memcpy(&address, blob.data() + sizeof(uint64_t), sizeof address);
    address.host.boot_id.back() = address.name.back() = '\0';  // they are printed
    if (encode(address) == blob) return address;
  }
  throw UsageError(str_cat("the address of rank ", rank, " is none of shm"),
                   str_cat(blob.size(), " bytes, damaged, of another transport or another version"),
                   "Pass what address() of that rank returned.");
}

std::string what_sets_apart(const ShmAddress& own, const ShmAddress& peer) {
  const HostIdentity &here = own.host, &there = peer.host;
  if (here.boot_id != there.boot_id)
    return str_cat("it is on another host, boot id ", there.boot_id.data(), ", here ",
                   here.boot_id.data());
  const auto differs = [](const char* kind, uint64_t theirs, uint64_t ours) {
    return str_cat("it is in another ", kind, " namespace, ", theirs, ", here ", ours);
  };
  if (here.network_namespace != there.network_namespace)
    return differs("network", there.network_namespace, here.network_namespace);
  if (here.user_namespace != there.user_namespace)
    return differs("user", there.user_namespace, here.user_namespace);
  if (here.pid_namespace != there.pid_namespace)
    return differs("pid", there.pid_namespace, here.pid_namespace);
  if (own.uid != peer.uid) return str_cat("it runs as uid ", peer.uid, ", this rank as ", own.uid);
  return "";
}

void require_reachable(const ShmAddress& own, const ShmAddress& peer, Rank rank) {
  const std::string reason = what_sets_apart(own, peer);
  if (reason.empty()) return;
  throw TransportError(str_cat("shm does not reach rank ", rank), reason,
                       "Start all ranks as one user in one container, or use another transport.");
}

}  // namespace hybridengine
