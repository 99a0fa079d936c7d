// Region: memory of this process that peers may reach: destination tensors that they write in
// place, or staging.
//
// A region has a number that is unique on this host for as long as it lives. What a peer needs to
// reach it travels by Link::offer, only to ranks that touch it. It dies with its last owner,
// and its memory then goes back to the system at once, also where peers still map it: they would
// find zeros, and let go of it at their next call. All regions of the process are found by address,
// so that a tensor tells whether it lies in one. Made by the bindings (hybridengine.empty) and for
// staging.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/span.h"
#include "device/place.h"
#include "transport/fork_guard.h"
#include "transport/host/sealed_memory.h"

namespace hybridengine {

/// A place in a region of some rank, known to both ends by numbers alone.
struct RegionRef {
  uint64_t region = 0;  // 0: none
  uint64_t offset = 0;  // bytes from its start
};

class Region {
 public:
  /// At least `bytes` of zeros of this host, reserved now. `purpose` ("staging") names it in
  /// errors. Calls `between` every 64 MiB, which may throw (Ctrl-C): nothing is left then. Throws
  /// UsageError where there is no room.
  static std::shared_ptr<Region> make(const char* purpose, size_t bytes,
                                      const std::function<void()>& between);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  uint64_t id() const { return id_; }
  Span span() const { return memory_.memory.span(); }
  DevicePlace place() const { return {}; }
  /// What other processes of this host map.
  const Fd& file() const { return memory_.fd; }

  /// The region that holds all of `bytes` from `address`; null where none does.
  static std::shared_ptr<Region> containing(const std::byte* address, size_t bytes);
  /// The living region of this process with that number; null where there is none.
  static std::shared_ptr<Region> find(uint64_t id);

 private:
  explicit Region(SealedMemory memory);

  ForkGuard guard_;
  SealedMemory memory_;
  uint64_t id_;
};

using RegionPtr = std::shared_ptr<Region>;

}  // namespace hybridengine
