// The CUDA devices of this machine, as `info` shows them. Works without a driver: nothing here
// throws for a missing one, the reason comes as text. Part of the module `_cuda`, not of `_core`;
// called by bindings/cuda_module.cc.
#pragma once

#include <string>
#include <vector>

namespace hybridengine::cuda {

struct DeviceCount {
  int count = 0;
  std::string reason;  // why count is 0; "" otherwise
};

/// Counts the visible devices. Loads the driver on the first call, creates no context.
DeviceCount device_count();

/// The runtime that this module was linked with, e.g. "13.0".
std::string runtime_version();

/// The newest runtime that the installed driver supports, e.g. "13.0"; "" without a driver.
std::string driver_version();

/// One name per device, in CUDA's order; empty without devices.
std::vector<std::string> device_names();

/// Runs a kernel of this build on `device` and checks its result. "" when that worked, otherwise
/// why not (no such device, no code for its architecture, ...). Creates a context; blocks until
/// done.
std::string try_device(int device);

}  // namespace hybridengine::cuda
