#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <unordered_map>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "comm/communicator.h"
#include "device/isa.h"
#include "transport/registry.h"

namespace py = pybind11;

namespace hybridengine {
namespace {

std::unique_ptr<Communicator> make_communicator(const std::string& transport, Rank rank,
                                                int32_t world, const std::string& group,
                                                double timeout_s, double enter_timeout_s) {
  if (world < 1 || rank < 0 || rank >= world)
    throw UsageError("a communicator needs a rank within its world",
                     str_cat("rank ", rank, ", world ", world), "");
  isa();  // throws here, and not amid a copy, where the CPU lacks a set that is asked for
  CommOptions options;
  options.timeout = to_milliseconds(timeout_s, "timeout");
  options.enter_timeout = to_milliseconds(enter_timeout_s, "enter_timeout");
  options.between = check_signals;
  return std::make_unique<Communicator>(make_fabric(transport, rank, world, group), rank, world,
                                        std::move(options));
}

std::vector<Blob> to_blobs(const std::vector<py::bytes>& addresses) {
  std::vector<Blob> blobs;
  for (const py::bytes& address : addresses) blobs.emplace_back(as_view(address));
  return blobs;
}

/// By rank, a list of its parts; equal ones are the same object.
py::list gather(Communicator& comm, const std::vector<py::bytes>& mine) {
  const std::vector<Blob> parts = to_blobs(mine);
  std::vector<std::vector<std::shared_ptr<const Blob>>> all;
  {
    py::gil_scoped_release release;
    all = comm.gather(parts);
  }
  std::unordered_map<const Blob*, py::bytes> made;
  py::list result;
  for (const auto& of_rank : all) {
    py::list list;
    for (const auto& each : of_rank)
      list.append(made.try_emplace(each.get(), py::bytes(*each)).first->second);
    result.append(list);
  }
  return result;
}

}  // namespace

void bind_comm(py::module_& module) {
  using released = py::call_guard<py::gil_scoped_release>;
  py::class_<Communicator>(module, "Communicator", "This rank among the others.")
      .def(py::init(&make_communicator), py::arg("transport"), py::arg("rank"), py::arg("world"),
           py::arg("group"), py::arg("timeout"), py::arg("enter_timeout"))
      .def_property_readonly("rank", &Communicator::rank)
      .def_property_readonly("world", &Communicator::world)
      .def_property_readonly("dead", &Communicator::dead)
      .def_property_readonly("transport", [](Communicator& comm) { return comm.fabric().name(); })
      .def_property_readonly("maps", [](Communicator& comm) { return comm.fabric().caps().maps; })
      .def_property_readonly("page",
                             [](Communicator& comm) {
                               const Caps& caps = comm.fabric().caps();
                               return caps.page && caps.payload;
                             })
      .def_property_readonly("pull", [](Communicator& comm) { return comm.fabric().caps().pull; })
      .def("address", [](Communicator& comm) { return py::bytes(comm.address()); })
      .def(
          "connect",
          [](Communicator& comm, const std::vector<py::bytes>& addresses) {
            const std::vector<Blob> blobs = to_blobs(addresses);
            py::gil_scoped_release release;
            comm.connect(blobs);
          },
          py::arg("addresses"))
      .def(
          "set_timeout",
          [](Communicator& comm, double seconds) {
            comm.set_timeout(to_milliseconds(seconds, "timeout"));
          },
          py::arg("timeout"))
      .def("close", &Communicator::close, released())
      .def("cancel", &Communicator::cancel)
      .def("enter", &Communicator::enter, released())
      .def("leave", &Communicator::leave, released())
      .def("gather", &gather, py::arg("parts"))
      .def_property_readonly("traffic",
                             [](const Communicator& comm) {
                               return py::make_tuple(comm.traffic().messages, comm.traffic().bytes);
                             })
      .def("fail", &Communicator::fail, py::arg("reason"), released());
}

}  // namespace hybridengine
