#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "device/cuda/devices.h"

namespace cuda = hybridengine::cuda;
namespace py = pybind11;

PYBIND11_MODULE(_cuda, module) {
  module.doc() = "What needs CUDA. Imports on a machine without a driver.";
  const py::call_guard<py::gil_scoped_release> release_gil;
  module.def(
      "device_count",
      [] {
        const cuda::DeviceCount found = cuda::device_count();
        return std::make_pair(found.count, found.reason);
      },
      release_gil, "The number of visible devices, and why there is none (\"\" otherwise).");
  module.def("runtime_version", &cuda::runtime_version,
             "The runtime of this build, e.g. \"13.0\".");
  module.def("driver_version", &cuda::driver_version, release_gil,
             "The newest runtime that the driver supports; \"\" without a driver.");
  module.def("device_names", &cuda::device_names, release_gil, "One name per device.");
  module.def("try_device", &cuda::try_device, py::arg("device"), release_gil,
             "Runs a kernel on a device: \"\" when that worked, otherwise why not.");
}
