// The DLPack ABI, version 1.x: just what is needed to read where a tensor lies.
//
// Facts of the binary interface under our own names; a test compares every offset with the header
// that torch ships. Functions of the exchange table that are not called here are kept as opaque
// pointers, so that the table has its layout.
#pragma once

#include <cstdint>

namespace hybridengine::dlpack {

inline constexpr uint32_t kMajorVersion = 1;

enum DeviceType : int32_t {
  kCpu = 1,
  kCuda = 2,
  kCudaHost = 3,  // pinned: the CPU reads and writes it as its own
};

enum TypeCode : uint8_t {
  kInt = 0,
  kUint = 1,
  kFloat = 2,
  kBfloat = 4,
  kBool = 6,
  kFloat8E4m3fn = 10,
  kFloat8E5m2 = 12,
};

enum Flags : uint64_t {
  kReadOnly = 1,
  kCopied = 2,
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct Device {
  int32_t type;
  int32_t index;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null (before 1.2): row-major
  uint64_t byte_offset;
};

/// In a capsule named kLegacyCapsule.
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor* self);
};

/// In a capsule named kVersionedCapsule. Of another major version only `deleter` may be touched.
struct ManagedTensorVersioned {
  Version version;
  void* context;
  void (*deleter)(ManagedTensorVersioned* self);
  uint64_t flags;
  Tensor tensor;
};

struct ExchangeApiHeader {
  Version version;
  ExchangeApiHeader* previous;  // an older table, or null
};

/// In a capsule named kExchangeCapsule, the attribute kExchangeAttribute of a tensor type.
/// Functions return 0, or -1 with a Python exception set.
struct ExchangeApi {
  ExchangeApiHeader header;
  void (*allocate)();
  int (*to_managed)(void* object, ManagedTensorVersioned** tensor);
  void (*from_managed)();
  /// Describes a tensor without owning it; may be null. What `tensor` points to lives until control
  /// goes back to Python.
  int (*to_tensor)(void* object, Tensor* tensor);
  void (*current_stream)();
};

inline constexpr const char* kLegacyCapsule = "dltensor";
inline constexpr const char* kVersionedCapsule = "dltensor_versioned";
inline constexpr const char* kExchangeCapsule = "dlpack_exchange_api";
inline constexpr const char* kExchangeAttribute = "__dlpack_c_exchange_api__";

}  // namespace hybridengine::dlpack
