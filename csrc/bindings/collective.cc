#include <pybind11/pybind11.h>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/memory.h"
#include "collective/collectives.h"

namespace py = pybind11;

namespace hybridengine {
namespace {

std::vector<TensorMemory> memory_of(const py::list& tensors, bool written) {
  std::vector<TensorMemory> memory;
  memory.reserve(tensors.size());
  for (const py::handle tensor : tensors) {
    const BorrowedMemory each = written ? borrow_writable(tensor) : borrow_memory(tensor);
    memory.push_back({each.data, each.shape, each.strides, each.dtype});
  }
  return memory;
}

/// What is wrong on one rank is raised on all of them, so nothing is raised here.
template <class Fill>
void run(Collectives& collectives, const Communicator& comm, Request request, const Fill& fill) {
  try {
    fill(request);
    check_request(request, comm.world());
  } catch (const UsageError& error) {
    request.error = error.what();
  }
  const py::gil_scoped_release release;
  collectives.run(request);
}

/// Keeps the communicator that its collectives use.
class BoundCollectives {
 public:
  explicit BoundCollectives(Communicator& comm) : comm_(comm), collectives_(comm) {}

  void all_reduce(const py::list& tensors, const std::string& op, int64_t bucket_bytes) {
    run(collectives_, comm_, {Kind::kAllReduce, Op::kSum, 0, bucket_bytes, {}, {}, ""},
        [&](Request& request) {
          request.op = parse_reduction(op);
          request.inputs = request.outputs = memory_of(tensors, true);
        });
  }

  void reduce_scatter(const py::list& outputs, const py::list& inputs, const std::string& op,
                      int64_t bucket_bytes) {
    run(collectives_, comm_, {Kind::kReduceScatter, Op::kSum, 0, bucket_bytes, {}, {}, ""},
        [&](Request& request) {
          request.op = parse_reduction(op);
          request.inputs = memory_of(inputs, false);
          request.outputs = memory_of(outputs, true);
        });
  }

  void all_gather(const py::list& outputs, const py::list& inputs, int64_t bucket_bytes) {
    run(collectives_, comm_, {Kind::kAllGather, Op::kCopy, 0, bucket_bytes, {}, {}, ""},
        [&](Request& request) {
          request.inputs = memory_of(inputs, false);
          request.outputs = memory_of(outputs, true);
        });
  }

  void broadcast(const py::list& tensors, Rank src, int64_t bucket_bytes) {
    run(collectives_, comm_, {Kind::kBroadcast, Op::kCopy, src, bucket_bytes, {}, {}, ""},
        [&](Request& request) { request.inputs = request.outputs = memory_of(tensors, true); });
  }

  void set_auto_bucket_bytes(int64_t bytes) { collectives_.set_auto_bucket_bytes(bytes); }

  void barrier() {
    run(collectives_, comm_, {}, [](Request&) {});
  }

 private:
  Communicator& comm_;
  Collectives collectives_;
};

}  // namespace

void bind_collective(py::module_& module) {
  py::class_<BoundCollectives>(module, "Collectives", "Collectives of one communicator.")
      .def(py::init<Communicator&>(), py::arg("comm"), py::keep_alive<1, 2>())
      .def("all_reduce", &BoundCollectives::all_reduce, py::arg("tensors"), py::arg("op"),
           py::arg("bucket_bytes"))
      .def("reduce_scatter", &BoundCollectives::reduce_scatter, py::arg("outputs"),
           py::arg("inputs"), py::arg("op"), py::arg("bucket_bytes"))
      .def("all_gather", &BoundCollectives::all_gather, py::arg("outputs"), py::arg("inputs"),
           py::arg("bucket_bytes"))
      .def("broadcast", &BoundCollectives::broadcast, py::arg("tensors"), py::arg("src"),
           py::arg("bucket_bytes"))
      .def("set_auto_bucket_bytes", &BoundCollectives::set_auto_bucket_bytes, py::arg("bytes"))
      .def("barrier", &BoundCollectives::barrier);
}

}  // namespace hybridengine
