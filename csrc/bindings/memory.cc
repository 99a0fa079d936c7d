#include "bindings/memory.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/dlpack.h"

namespace py = pybind11;

namespace hybridengine {
namespace {

std::string type_name(py::handle object) {
  return std::string(py::str(py::type::handle_of(object).attr("__module__"))) + "." +
         std::string(py::str(py::type::handle_of(object).attr("__qualname__")));
}

[[noreturn]] void refuse(py::handle object, const std::string& facts, const std::string& mend) {
  throw UsageError("cannot use the memory of a " + type_name(object), facts, mend);
}

/// The Python exception that is set, as the facts of a UsageError; Ctrl-C and the like go on. Of
/// torch's, whose texts carry C++ frames, the first line.
[[noreturn]] void refuse_with_exception(py::handle object) {
  py::error_already_set error;
  if (!error.matches(PyExc_Exception)) throw error;
  const std::string text = py::str(error.value());
  refuse(object, text.substr(0, text.find('\n')),
         "Give a torch or numpy array that lies on the CPU.");
}

std::optional<Dtype> dtype_of(dlpack::DataType type) {
  if (type.lanes != 1) return std::nullopt;
  switch (type.code << 8 | type.bits) {
    case dlpack::kFloat << 8 | 64:
      return Dtype::kFloat64;
    case dlpack::kFloat << 8 | 32:
      return Dtype::kFloat32;
    case dlpack::kFloat << 8 | 16:
      return Dtype::kFloat16;
    case dlpack::kBfloat << 8 | 16:
      return Dtype::kBfloat16;
    case dlpack::kFloat8E4m3fn << 8 | 8:
      return Dtype::kFloat8E4m3fn;
    case dlpack::kFloat8E5m2 << 8 | 8:
      return Dtype::kFloat8E5m2;
    case dlpack::kInt << 8 | 64:
      return Dtype::kInt64;
    case dlpack::kInt << 8 | 32:
      return Dtype::kInt32;
    case dlpack::kInt << 8 | 16:
      return Dtype::kInt16;
    case dlpack::kInt << 8 | 8:
      return Dtype::kInt8;
    case dlpack::kUint << 8 | 8:
      return Dtype::kUint8;
    case dlpack::kBool << 8 | 8:
      return Dtype::kBool;
    default:
      return std::nullopt;
  }
}

/// The dtype as its owner prints it.
std::string printed(py::handle object, const char* attribute) {
  return std::string(py::str(py::getattr(object, attribute, py::str("unknown"))));
}

BorrowedMemory memory_of(py::handle object, const dlpack::Tensor& tensor, bool read_only) {
  if (tensor.device.type != dlpack::kCpu && tensor.device.type != dlpack::kCudaHost)
    refuse(object,
           str_cat("it lies on ", printed(object, "device"), " (DLPack device type ",
                   tensor.device.type, ")"),
           "Move it to the CPU first.");
  const auto dtype = dtype_of(tensor.dtype);
  if (!dtype)
    refuse(
        object, str_cat("its element type is ", printed(object, "dtype")),
        "View it as one of float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int64, "
        "int32, int16, int8, uint8, bool.");
  BorrowedMemory memory;
  memory.read_only = read_only;
  memory.shape = Shape({tensor.shape, static_cast<size_t>(tensor.ndim)});
  memory.dtype = *dtype;
  if (tensor.strides)
    std::copy(tensor.strides, tensor.strides + tensor.ndim, memory.strides.begin());
  else
    memory.strides = memory.shape.contiguous_strides();
  if (tensor.data) memory.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  if (!memory.data && memory.shape.num_elems() > 0)
    refuse(object, str_cat("it has ", memory.shape.num_elems(), " elements but no memory"),
           "Give the local tensor that holds the data.");
  return memory;
}

/// The exchange table of a type, or null. Asked once per type: the type is kept for good, so that
/// its address cannot come to mean another.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) {
  static auto* const known = new std::unordered_map<PyTypeObject*, const dlpack::ExchangeApi*>;
  if (const auto found = known->find(type); found != known->end()) return found->second;
  const auto* api = static_cast<const dlpack::ExchangeApiHeader*>(nullptr);
  const py::object capsule = py::getattr(py::handle(reinterpret_cast<PyObject*>(type)),
                                         dlpack::kExchangeAttribute, py::none());
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::kExchangeCapsule))
    api = static_cast<const dlpack::ExchangeApiHeader*>(
        PyCapsule_GetPointer(capsule.ptr(), dlpack::kExchangeCapsule));
  while (api && api->version.major != dlpack::kMajorVersion) api = api->previous;
  Py_INCREF(type);
  return (*known)[type] = reinterpret_cast<const dlpack::ExchangeApi*>(api);
}

template <class Managed>
struct Release {
  void operator()(Managed* managed) const {
    if (managed->deleter) managed->deleter(managed);
  }
};

BorrowedMemory read_versioned(py::handle object, dlpack::ManagedTensorVersioned* managed) {
  const std::unique_ptr<dlpack::ManagedTensorVersioned, Release<dlpack::ManagedTensorVersioned>>
      owner(managed);
  if (managed->version.major != dlpack::kMajorVersion)
    refuse(object,
           str_cat("it speaks DLPack ", managed->version.major, ".", managed->version.minor),
           "Use a release of its library that speaks DLPack 1.");
  if (managed->flags & dlpack::kCopied)
    refuse(object, "its library gave a copy of it", "Give an array that can be shared as it is.");
  return memory_of(object, managed->tensor, (managed->flags & dlpack::kReadOnly) != 0);
}

/// Takes the tensor out of a capsule from __dlpack__, which from then on is used up.
BorrowedMemory read_capsule(py::handle object, const py::object& capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::kVersionedCapsule)) {
    void* managed = PyCapsule_GetPointer(capsule.ptr(), dlpack::kVersionedCapsule);
    PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    return read_versioned(object, static_cast<dlpack::ManagedTensorVersioned*>(managed));
  }
  if (!PyCapsule_IsValid(capsule.ptr(), dlpack::kLegacyCapsule))
    refuse(object, "its __dlpack__ gave no DLPack capsule", "");
  auto* managed = static_cast<dlpack::ManagedTensor*>(
      PyCapsule_GetPointer(capsule.ptr(), dlpack::kLegacyCapsule));
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  const std::unique_ptr<dlpack::ManagedTensor, Release<dlpack::ManagedTensor>> owner(managed);
  return memory_of(object, managed->tensor, false);
}

/// Through __dlpack__. Older producers do not know max_version.
BorrowedMemory read_by_protocol(py::handle object) {
  if (!py::hasattr(object, "__dlpack__"))
    refuse(object, "it has no __dlpack__", "Give a torch or numpy array.");
  // torch refuses to export a tensor that requires grad; the detached one has the same memory.
  py::object shared = py::reinterpret_borrow<py::object>(object);
  const py::object needs_grad = py::getattr(object, "requires_grad", py::none());
  if (needs_grad.ptr() == Py_True) shared = object.attr("detach")();
  const py::object export_ = shared.attr("__dlpack__");
  py::object capsule;
  try {
    try {
      capsule = export_(py::arg("max_version") = py::make_tuple(1, 1));
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_TypeError)) throw;
      capsule = export_();
    }
  } catch (py::error_already_set& error) {
    error.restore();
    refuse_with_exception(object);
  }
  return read_capsule(object, capsule);
}

/// torch keeps a sign in a bit beside the memory where it can (x.conj().imag): what lies there is
/// then not what the tensor means.
void refuse_lazy_sign(py::handle object) {
  static auto* const known = new std::unordered_map<PyTypeObject*, bool>;
  static PyObject* const is_neg = PyUnicode_InternFromString("is_neg");
  PyTypeObject* const type = Py_TYPE(object.ptr());
  auto found = known->find(type);
  if (found == known->end()) {
    Py_INCREF(type);
    found = known->emplace(type, py::hasattr(object, "is_neg")).first;
  }
  if (!found->second) return;
  const auto answer =
      py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(object.ptr(), is_neg));
  if (!answer) throw py::error_already_set();
  if (answer.ptr() == Py_True)
    refuse(object, "its sign is kept in a bit of the tensor (is_neg()), not in its memory",
           "Pass resolve_neg() of it.");
}

BorrowedMemory read_by_exchange(py::handle object, const dlpack::ExchangeApi& api) {
  dlpack::ManagedTensorVersioned* managed = nullptr;
  if (api.to_managed(object.ptr(), &managed) != 0) refuse_with_exception(object);
  return read_versioned(object, managed);
}

py::tuple describe_memory(const py::object& object, bool exchange) {
  const BorrowedMemory memory = borrow_memory(object, exchange);
  const auto list = [&](const Dims& values) {
    return py::tuple(
        py::cast(std::vector<int64_t>(values.begin(), values.begin() + memory.shape.ndim)));
  };
  return py::make_tuple(reinterpret_cast<uintptr_t>(memory.data), list(memory.shape.size),
                        list(memory.strides), std::string(dtype_name(memory.dtype)),
                        memory.read_only);
}

}  // namespace

BorrowedMemory borrow_memory(py::handle object, bool exchange) {
  refuse_lazy_sign(object);
  const auto* api = exchange ? exchange_api(Py_TYPE(object.ptr())) : nullptr;
  return api ? read_by_exchange(object, *api) : read_by_protocol(object);
}

BorrowedMemory borrow_writable(py::handle object) {
  const BorrowedMemory borrowed = borrow_memory(object);
  if (borrowed.read_only) refuse(object, "it is read-only", "Give an array that may be written.");
  return borrowed;
}

void bind_memory(py::module_& module) {
  module.def(
      "describe_memory", &describe_memory, py::arg("tensor"), py::kw_only(),
      py::arg("exchange") = true,
      "(address, shape, strides in elements, dtype, read_only) of a tensor on the CPU. "
      "exchange=False goes through __dlpack__ even where the type offers the exchange table.");
}

}  // namespace hybridengine
