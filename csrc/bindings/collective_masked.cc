#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <optional>
#include <string>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "bindings/masked_arguments.h"
#include "collective/exchange.h"
#include "collective/masked.h"
#include "comm/call_scope.h"

namespace py = pybind11;

namespace hybridengine {
namespace {

/// Counts of a result, for as long as somebody looks at them: a buffer of int32.
struct MaskedCounts {
  std::vector<int32_t> values;
};

/// Needs the GIL only where the caller's objects are read.
class BoundMaskedReduction {
 public:
  BoundMaskedReduction(const MaskedCall& call, py::handle package)
      : arguments_(call, package), reduction_(arguments_.tensors(), arguments_.options()) {}

  MaskedReduction& get() { return reduction_; }
  const MaskedArguments& arguments() const { return arguments_; }

  /// What is wrong with the scores, or "".
  std::string read_scores() {
    const py::gil_scoped_release release;
    const int32_t with_nan = reduction_.read_scores();
    if (with_nan < 0) return "";
    return str_cat("a score of tensor ", with_nan, " is NaN. Mend it, or mask it with -inf.");
  }
  /// Whether all ranks passed the same; then it is done.
  bool run(Communicator& comm, double wire_density) {
    const py::gil_scoped_release release;
    CallScope call(comm);
    const uint64_t statement = arguments_.statement();
    const bool alike = call.run([&] { return reduction_.agree(comm, statement, wire_density); });
    if (alike) call.run([&] { reduction_.run(comm, statement); });
    call.leave();
    return alike;
  }
  /// (results, counts, kept, wire_bytes, dense_bytes, route)
  py::tuple results() {
    return py::make_tuple(arguments_.out(), MaskedCounts{std::move(arguments_.counts())},
                          reduction_.kept(), reduction_.wire_bytes(), reduction_.dense_bytes(),
                          reduction_.route() == Route::kWire ? "wire" : "dense");
  }

 private:
  MaskedArguments arguments_;
  MaskedReduction reduction_;
};

/// A rank with wrong arguments takes part in the agreement all the same.
void refuse(Communicator& comm) {
  const py::gil_scoped_release release;
  CallScope call(comm);
  call.run([&] { MaskedReduction::refuse(comm); });
  call.leave();
}

/// What is wrong with the arguments of one rank all ranks raise: its words are returned.
py::object reduce_masked(Communicator& comm, double timeout_s, double wire_density,
                         const py::object& package, const MaskedCall& given) {
  comm.set_timeout(to_milliseconds(timeout_s, "timeout"));
  std::optional<BoundMaskedReduction> reduction;
  std::string wrong;
  try {
    reduction.emplace(given, package);
    wrong = reduction->read_scores();
  } catch (const UsageError& error) {
    wrong = error.what();
  } catch (const std::exception& error) {  // Ctrl-C, or what a tensor of another library raises
    const std::string reason = reason_of(error);
    const py::gil_scoped_release release;
    comm.fail(reason);
    throw;
  }
  if (!wrong.empty()) {
    refuse(comm);
    return py::str(wrong);
  }
  if (!reduction->run(comm, wire_density)) return py::str("");
  return reduction->results();
}

/// Every rank gives bytes for every peer and gets those of all peers. `bound` is as large as the
/// largest of them.
py::list exchange_bytes(Communicator& comm, const std::vector<py::bytes>& mine, size_t bound,
                        size_t slot_bytes, uint64_t plan) {
  const auto num_packets = static_cast<int64_t>((bound + slot_bytes - 1) / slot_bytes);
  std::vector<std::string_view> left;
  for (const py::bytes& each : mine) left.push_back(as_view(each));
  std::vector<Blob> received(comm.world());
  Exchange exchange(comm, plan, slot_bytes, {2});
  const auto move = [&](Rank peer) {
    bool moved = false;
    if (exchange.may_send(peer, 0)) {
      const std::string_view part = left[peer].substr(0, slot_bytes);
      const Span slot = exchange.next_slot(peer, 0);
      if (slot.data != nullptr && !part.empty()) std::memcpy(slot.data, part.data(), part.size());
      exchange.send(peer, 0, part.size());
      left[peer].remove_prefix(part.size());
      moved = true;
    }
    if (const Span* landed = exchange.landed(peer, 0)) {
      const Blob zeros(landed->data == nullptr ? landed->bytes : 0, '\0');
      received[peer] += landed->data == nullptr
                            ? zeros
                            : Blob(reinterpret_cast<const char*>(landed->data), landed->bytes);
      exchange.release(peer, 0);
      moved = true;
    }
    return moved;
  };
  {
    const py::gil_scoped_release release;
    for (Rank peer = 0; peer < comm.world(); ++peer) {
      if (peer == comm.rank()) continue;
      exchange.expect(peer, 0, num_packets);
      exchange.promise(peer, 0, num_packets);
    }
    exchange.start();
    while (!exchange.done()) {
      exchange.poll();
      bool moved = false;
      for (Rank peer = 0; peer < comm.world(); ++peer)
        if (peer != comm.rank()) moved |= move(peer);
      if (!moved && !exchange.done()) exchange.wait("arrival of bytes");
    }
  }
  py::list result;
  for (const Blob& each : received) result.append(py::bytes(each));
  return result;
}

}  // namespace

void bind_masked(py::module_& module) {
  using released = py::call_guard<py::gil_scoped_release>;
  module.def("exchange_bytes", &exchange_bytes, py::arg("comm"), py::arg("mine"), py::arg("bound"),
             py::arg("slot_bytes"), py::arg("plan") = 0,
             "Every rank's bytes for every other rank, by way of an exchange. Within a call.");
  py::class_<MaskedCounts>(module, "MaskedCounts", py::buffer_protocol(),
                           "How many ranks took part in each entry.")
      .def_buffer([](MaskedCounts& self) {
        return py::buffer_info(self.values.data(), static_cast<py::ssize_t>(self.values.size()));
      });
  module.def(
      "masked_all_reduce",
      [](Communicator& comm, double timeout, double wire_density, const py::object& package,
         py::object values, py::object scores, py::object out, py::object residual,
         std::string granularity, std::string op, py::object threshold, py::object fill,
         py::object bucket_bytes, std::string route, bool counts) {
        return reduce_masked(
            comm, timeout, wire_density, package,
            {std::move(values), std::move(scores), std::move(out), std::move(residual),
             std::move(granularity), std::move(op), std::move(threshold), std::move(fill),
             std::move(bucket_bytes), std::move(route), counts});
      },
      py::arg("comm"), py::arg("timeout"), py::arg("wire_density"), py::arg("package"),
      py::arg("values"), py::arg("scores"), py::arg("out"), py::arg("residual"),
      py::arg("granularity"), py::arg("op"), py::arg("threshold"), py::arg("fill"),
      py::arg("bucket_bytes"), py::arg("route"), py::arg("counts"),
      "A call by itself. (results, counts, kept, wire_bytes, dense_bytes, route); or a text where "
      "nothing was done: what is wrong with the arguments of this rank, or '' where ranks differ.");
  py::class_<BoundMaskedReduction>(module, "MaskedReduction",
                                   "This rank's part of one masked all-reduce, for tests.")
      .def(py::init([](py::list values, py::list scores, py::list out, bool counts,
                       py::object residual, std::string granularity, std::string op,
                       double threshold, double fill, int64_t bucket_bytes, std::string route) {
             const MaskedCall call{std::move(values),
                                   std::move(scores),
                                   std::move(out),
                                   std::move(residual),
                                   std::move(granularity),
                                   std::move(op),
                                   py::float_(threshold),
                                   py::float_(fill),
                                   bucket_bytes == 0 ? py::object(py::str("auto"))
                                                     : py::object(py::int_(bucket_bytes)),
                                   std::move(route),
                                   counts};
             return std::make_unique<BoundMaskedReduction>(call, py::none());
           }),
           py::arg("values"), py::arg("scores"), py::arg("out"), py::arg("counts"),
           py::arg("residual"), py::arg("granularity"), py::arg("op"), py::arg("threshold"),
           py::arg("fill"), py::arg("bucket_bytes") = 0, py::arg("route") = "wire")
      .def(
          "read_scores", [](BoundMaskedReduction& self) { return self.get().read_scores(); },
          released(), "The first tensor with a NaN score, or -1.")
      .def(
          "run",
          [](BoundMaskedReduction& self, Communicator& comm, uint64_t plan) {
            self.get().run(comm, plan);
          },
          py::arg("comm"), py::arg("plan"), released(), "Within a call.")
      .def_property_readonly("staging_bytes",
                             [](BoundMaskedReduction& self) { return self.get().staging_bytes(); });
}

}  // namespace hybridengine
