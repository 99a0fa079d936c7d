#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "bindings/bindings.h"
#include "bindings/memory.h"
#include "device/copy.h"
#include "device/isa.h"
#include "device/mask.h"
#include "device/reduce.h"

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

int64_t count_of(const BorrowedMemory& memory) {
  if (memory.shape.ndim == 1 && (memory.shape.size[0] <= 1 || memory.strides[0] == 1))
    return memory.shape.size[0];
  throw UsageError("not a contiguous run", "the shape is " + memory.shape.to_string(),
                   "Give contiguous tensors of one dim.");
}

/// Runs of one length, of `dtype` where they are sources.
void check_run(const BorrowedMemory& run, const BorrowedMemory& like, Dtype dtype) {
  if (count_of(run) == count_of(like) && run.dtype == dtype) return;
  throw UsageError("runs differ",
                   str_cat(count_of(run), " elements of ", dtype_name(run.dtype), " beside ",
                           count_of(like), ", ", dtype_name(dtype), " expected"),
                   "Give runs of one length and matching types.");
}

void reduce_tensors(const std::string& op, const py::object& src, const py::object& dst) {
  const BorrowedMemory from = borrow_memory(src);
  const BorrowedMemory to = borrow_writable(dst);
  check_run(from, to, to.dtype);
  const ReduceOp parsed = parse_reduce_op(op);
  const py::gil_scoped_release release;
  reduce(parsed, to.dtype, from.data, to.data, count_of(to));
}

void accumulate_tensors(const std::string& op, const py::object& src, const py::object& dst) {
  const BorrowedMemory from = borrow_memory(src);
  const BorrowedMemory to = borrow_writable(dst);
  check_run(to, from, accumulator_dtype(from.dtype));
  accumulate(parse_reduce_op(op), from.dtype, from.data, to.data, count_of(from));
}

void finish_tensors(const py::object& accumulator, int divisor, const py::object& dst) {
  const BorrowedMemory from = borrow_memory(accumulator);
  const BorrowedMemory to = borrow_writable(dst);
  check_run(from, to, accumulator_dtype(to.dtype));
  finish(to.dtype, from.data, divisor, to.data, count_of(to));
}

void fold_tensors(const std::string& op, const std::vector<py::object>& srcs, const py::object& dst,
                  int divisor) {
  const BorrowedMemory to = borrow_writable(dst);
  std::vector<const std::byte*> addresses;
  for (const py::object& src : srcs) {
    const BorrowedMemory from = borrow_memory(src);
    check_run(from, to, to.dtype);
    addresses.push_back(from.data);
  }
  const ReduceOp parsed = parse_reduce_op(op);
  const py::gil_scoped_release release;
  fold(parsed, to.dtype, addresses, divisor, to.data, count_of(to));
}

void fold_tensors_twice(const std::string& op, const std::vector<py::object>& srcs,
                        const py::object& dst, const py::object& copy, int divisor) {
  const BorrowedMemory to = borrow_writable(dst), also = borrow_writable(copy);
  check_run(also, to, to.dtype);
  std::vector<const std::byte*> addresses;
  for (const py::object& src : srcs) {
    const BorrowedMemory from = borrow_memory(src);
    check_run(from, to, to.dtype);
    addresses.push_back(from.data);
  }
  fold_twice(parse_reduce_op(op), to.dtype, addresses, divisor, to.data, also.data, count_of(to));
  stream_fence();
}

void bind_reduce(py::module_& module) {
  module.def("reduce", &reduce_tensors, py::arg("op"), py::arg("src"), py::arg("dst"),
             "dst = dst op src for contiguous runs; op is sum, min or max.");
  module.def("accumulate", &accumulate_tensors, py::arg("op"), py::arg("src"),
             py::arg("accumulator"), "accumulator = accumulator op src, without rounding.");
  module.def("finish", &finish_tensors, py::arg("accumulator"), py::arg("divisor"), py::arg("dst"),
             "dst = accumulator / divisor, rounded once.");
  module.def("fold", &fold_tensors, py::arg("op"), py::arg("srcs"), py::arg("dst"),
             py::arg("divisor") = 1,
             "dst = (srcs[0] op srcs[1] op ...) / divisor, rounded once; dst may be a source.");
  module.def("fold_twice", &fold_tensors_twice, py::arg("op"), py::arg("srcs"), py::arg("dst"),
             py::arg("copy"), py::arg("divisor") = 1, "The same, into two places.");
}

void bind_isa(py::module_& module) {
  module.def("isa", &isa, "The instruction set of the loops that copy, convert and reduce.");
  module.def("usable_isas", &usable_isas,
             "The instruction sets that this build has and this CPU can run, best first.");
  module.def(
      "choose_isa",
      [](const std::string& wish, const std::vector<std::string>& usable) {
        const std::vector<std::string_view> views(usable.begin(), usable.end());
        return std::string(choose_isa(wish, views));
      },
      py::arg("wish"), py::arg("usable"), "The one of the usable sets that a wish asks for.");
  module.def("refresh_isa", &refresh_isa, "Reads HYBRIDENGINE_ISA again when it is next needed.");
}

}  // namespace

void bind_device(py::module_& module) {
  module.def("copy_strided", &copy_tensor, py::arg("src"), py::arg("dst"),
             "Copies src into dst, two CPU tensors of one shape that do not overlap, converting "
             "between floating types.");
  module.def("digest_strided", &digest_tensor, py::arg("tensor"),
             "The digest of a CPU tensor's elements in row-major order.");
  bind_reduce(module);
  bind_isa(module);
}

}  // namespace hybridengine
