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
    try {
      memory.push_back(written ? borrow_writable(tensor) : borrow_memory(tensor));
    } catch (const UsageError& error) {
      throw UsageError(str_cat("tensor ", memory.size()), error.what(), "");
    }
  }
  return memory;
}

/// Throws UsageError on a value of another type.
template <class T>
T take(const py::object& value, const char* name, const char* mend) {
  try {
    return value.cast<T>();
  } catch (const py::cast_error&) {
    throw UsageError(str_cat(name, " has a wrong type: ", std::string(py::repr(value))), "", mend);
  }
}

Op take_op(const py::object& op) {
  return parse_reduction(take<std::string>(op, "op", "Use sum, mean, max or min."));
}

int64_t take_bucket_bytes(const py::object& bytes) {
  return take<int64_t>(bytes, "bucket_bytes", "Use a number of bytes, '4M' or 'auto'.");
}

/// What is wrong on one rank is raised on all of them, so nothing is raised here.
template <class Fill>
void run(Collectives& collectives, Communicator& comm, Kind kind, const Fill& fill) {
  Request request;
  request.kind = kind;
  try {
    fill(request);
    check_request(request, comm.world());
  } catch (const UsageError& error) {
    request.error = error.what();
  } catch (const std::exception& error) {  // Ctrl-C, or what a tensor of another library raises
    const std::string reason = error.what();
    const py::gil_scoped_release release;
    comm.fail(reason);
    throw;
  }
  const py::gil_scoped_release release;
  collectives.run(request);
}

/// Keeps the communicator that its collectives use.
class BoundCollectives {
 public:
  BoundCollectives(Communicator& comm, int64_t auto_bucket_bytes)
      : comm_(comm), collectives_(comm, auto_bucket_bytes) {}

  void all_reduce(const py::list& tensors, const py::object& op, const py::object& bucket_bytes) {
    run(collectives_, comm_, Kind::kAllReduce, [&](Request& request) {
      request.op = take_op(op);
      request.bucket_bytes = take_bucket_bytes(bucket_bytes);
      request.inputs = request.outputs = memory_of(tensors, true);
    });
  }

  void reduce_scatter(const py::list& outputs, const py::list& inputs, const py::object& op,
                      const py::object& bucket_bytes) {
    run(collectives_, comm_, Kind::kReduceScatter, [&](Request& request) {
      request.op = take_op(op);
      request.bucket_bytes = take_bucket_bytes(bucket_bytes);
      request.inputs = memory_of(inputs, false);
      request.outputs = memory_of(outputs, true);
    });
  }

  void all_gather(const py::list& outputs, const py::list& inputs, const py::object& bucket_bytes) {
    run(collectives_, comm_, Kind::kAllGather, [&](Request& request) {
      request.bucket_bytes = take_bucket_bytes(bucket_bytes);
      request.inputs = memory_of(inputs, false);
      request.outputs = memory_of(outputs, true);
    });
  }

  void broadcast(const py::list& tensors, const py::object& src, const py::object& bucket_bytes) {
    run(collectives_, comm_, Kind::kBroadcast, [&](Request& request) {
      request.root = take<Rank>(src, "src", "Use the number of a rank.");
      request.bucket_bytes = take_bucket_bytes(bucket_bytes);
      request.inputs = request.outputs = memory_of(tensors, true);
    });
  }

  void barrier() {
    run(collectives_, comm_, Kind::kBarrier, [](Request&) {});
  }

 private:
  Communicator& comm_;
  Collectives collectives_;
};

}  // namespace

void bind_collective(py::module_& module) {
  py::class_<BoundCollectives>(module, "Collectives", "Collectives of one communicator.")
      .def(py::init<Communicator&, int64_t>(), py::arg("comm"), py::arg("auto_bucket_bytes"),
           py::keep_alive<1, 2>())
      .def("all_reduce", &BoundCollectives::all_reduce, py::arg("tensors"), py::arg("op"),
           py::arg("bucket_bytes"))
      .def("reduce_scatter", &BoundCollectives::reduce_scatter, py::arg("outputs"),
           py::arg("inputs"), py::arg("op"), py::arg("bucket_bytes"))
      .def("all_gather", &BoundCollectives::all_gather, py::arg("outputs"), py::arg("inputs"),
           py::arg("bucket_bytes"))
      .def("broadcast", &BoundCollectives::broadcast, py::arg("tensors"), py::arg("src"),
           py::arg("bucket_bytes"))
      .def("barrier", &BoundCollectives::barrier);
}

}  // namespace hybridengine
