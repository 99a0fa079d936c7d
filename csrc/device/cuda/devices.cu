#include <cuda_runtime.h>

#include "device/cuda/devices.h"

namespace hybridengine::cuda {
namespace {

constexpr unsigned kPattern = 0x48e0c0deu;

__global__ void write_pattern(unsigned* word) { *word = kPattern; }

// CUDA's versions are 1000 * major + 10 * minor.
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

cudaError_t run_pattern(int device, unsigned* word) {
  cudaError_t status = cudaSetDevice(device);
  if (status != cudaSuccess) return status;
  unsigned* device_word = nullptr;
  status = cudaMalloc(&device_word, sizeof(unsigned));
  if (status != cudaSuccess) return status;
  write_pattern<<<1, 1>>>(device_word);
  status = cudaGetLastError();
  if (status == cudaSuccess) {
    status = cudaMemcpy(word, device_word, sizeof(unsigned), cudaMemcpyDeviceToHost);
  }
  const cudaError_t freed = cudaFree(device_word);
  return status == cudaSuccess ? freed : status;
}

}  // namespace

DeviceCount device_count() {
  DeviceCount found;
  const cudaError_t status = cudaGetDeviceCount(&found.count);
  if (status != cudaSuccess) {
    cudaGetLastError();  // the error would otherwise be reported again by an unrelated call
    const bool has_driver = !driver_version().empty();
    return {0, has_driver ? cudaGetErrorString(status) : "no NVIDIA driver on this machine"};
  }
  if (found.count == 0) found.reason = "the driver reports no device";
  return found;
}

std::string runtime_version() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version_text(version) : "";
}

std::string driver_version() {
  int version = 0;
  const bool found = cudaDriverGetVersion(&version) == cudaSuccess && version > 0;
  return found ? version_text(version) : "";
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  const int count = device_count().count;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    const cudaError_t status = cudaGetDeviceProperties(&properties, device);
    names.push_back(status == cudaSuccess ? properties.name : cudaGetErrorString(status));
  }
  return names;
}

std::string try_device(int device) {
  unsigned word = 0;
  const cudaError_t status = run_pattern(device, &word);
  if (status != cudaSuccess) {
    cudaGetLastError();
    return cudaGetErrorString(status);
  }
  return word == kPattern ? "" : "a kernel ran but wrote nothing";
}

}  // namespace hybridengine::cuda
