#include "base/error.h"
#include "base/hash.h"
#include "bindings/bindings.h"
#include "bindings/memory.h"
#include "device/copy.h"

namespace py = pybind11;

namespace hybridengine {
namespace {

void copy_tensor(const py::object& src, const py::object& dst) {
  const BorrowedMemory from = borrow_memory(src);
  const BorrowedMemory to = borrow_writable(dst);
  if (!(from.shape == to.shape))
    throw UsageError("shapes differ",
                     str_cat("src is ", from.shape.to_string(), ", dst is ", to.shape.to_string()),
                     "Give views of one shape.");
  const py::gil_scoped_release release;
  copy_strided(from.end(), to.end(), from.shape.ndim, from.shape.size);
}

uint64_t digest_tensor(const py::object& tensor) {
  const BorrowedMemory memory = borrow_memory(tensor);
  const py::gil_scoped_release release;
  Digest digest;
  digest_strided(memory.end(), memory.shape.ndim, memory.shape.size, digest);
  return digest.value();
}

}  // namespace

void bind_device(py::module_& module) {
  module.def("copy_strided", &copy_tensor, py::arg("src"), py::arg("dst"),
             "Copies src into dst, two CPU tensors of one shape that do not overlap, converting "
             "between floating types.");
  module.def("digest_strided", &digest_tensor, py::arg("tensor"),
             "The digest of a CPU tensor's elements in row-major order.");
}

}  // namespace hybridengine
