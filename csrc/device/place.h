// DevicePlace: where memory lies: with the host, or on one device.
//
// What it is not: an address, or what can be done with the memory (device/cuda/). Carried by
// transport's Regions and by whoever hands tensors to them.
#pragma once

#include <cstdint>
#include <string>

namespace hybridengine {

struct DevicePlace {
  enum class Kind : uint8_t { kHost, kCuda };
  Kind kind = Kind::kHost;
  int32_t index = 0;  // of the device; 0 for the host

  /// "host" or "cuda:1".
  std::string text() const {
    return kind == Kind::kHost ? "host" : "cuda:" + std::to_string(index);
  }

  bool operator==(const DevicePlace&) const = default;
};

}  // namespace hybridengine
