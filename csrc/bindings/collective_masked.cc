#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstring>
#include <deque>
#include <optional>
#include <string>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "bindings/memory.h"
#include "collective/exchange.h"
#include "collective/masked.h"

namespace py = pybind11;

namespace hybridengine {
namespace {

MaskedOp parse_masked_op(std::string_view name) {
  constexpr std::array<std::string_view, 3> kNames{"sum", "mean", "mean_world"};
  for (size_t at = 0; at < kNames.size(); ++at)
    if (kNames[at] == name) return static_cast<MaskedOp>(at);
  throw UsageError(str_cat("op=", name, " is not an operation of masked_all_reduce"), "",
                   "Use sum, mean or mean_world.");
}

/// What the scores of a tensor look like under a granularity.
Shape score_shape(const Shape& values, std::string_view granularity) {
  if (granularity == "element") return values;
  if (granularity == "tensor") return {};
  if (granularity != "row")
    throw UsageError(str_cat("granularity=", granularity, " is not one"), "",
                     "Use element, row or tensor.");
  Shape rows;
  rows.ndim = std::min(values.ndim, 1);
  rows.size[0] = rows.ndim == 1 ? values.size[0] : 0;
  return rows;
}

void check_like(const BorrowedMemory& found, const Shape& shape, const Dtype* dtype,
                const char* what, size_t index) {
  if (found.shape == shape && (dtype == nullptr || found.dtype == *dtype)) return;
  throw UsageError(
      str_cat(what, " does not fit tensor ", index),
      str_cat("it is ", found.shape.to_string(), " ", dtype_name(found.dtype), ", expected ",
              shape.to_string(), " ", dtype == nullptr ? "" : dtype_name(*dtype)),
      "");
}

/// Holds the Python tensors for as long as the reduction knows their addresses.
class BoundMaskedReduction {
 public:
  BoundMaskedReduction(const py::list& values, const py::list& scores, const py::list& out,
                       const std::optional<py::list>& counts,
                       const std::optional<py::list>& residual, const std::string& granularity,
                       const MaskedOptions& options)
      : reduction_(read(values, scores, out, counts, residual, granularity), options) {}

  MaskedReduction& get() { return reduction_; }

 private:
  std::vector<MaskedTensor> read(const py::list& values, const py::list& scores,
                                 const py::list& out, const std::optional<py::list>& counts,
                                 const std::optional<py::list>& residual,
                                 const std::string& granularity) {
    std::vector<MaskedTensor> tensors;
    for (size_t i = 0; i < values.size(); ++i) {
      MaskedTensor& each = tensors.emplace_back();
      const BorrowedMemory memory = borrow_memory(values[i]);
      const Shape shape = score_shape(memory.shape, granularity);
      each.values = memory;
      each.scores = read_scores(scores[i], shape, i);
      each.out = read_writable(out[i], memory.shape, memory.dtype, "out", i);
      const int64_t entries = granularity == "tensor" ? 1 : shape.num_elems();
      each.width = std::max<int64_t>(1, memory.shape.num_elems() / std::max<int64_t>(1, entries));
      constexpr Dtype kCount = Dtype::kInt32;
      if (counts)
        each.counts = reinterpret_cast<int32_t*>(
            read_writable((*counts)[i], shape, kCount, "counts", i).data);
      if (residual)
        each.residual = read_writable((*residual)[i], memory.shape, memory.dtype, "residual", i);
    }
    kept_ = py::make_tuple(values, scores, out, counts, residual);
    return tensors;
  }

  static TensorMemory read_writable(py::handle tensor, const Shape& shape, Dtype dtype,
                                    const char* what, size_t index) {
    const BorrowedMemory memory = borrow_writable(tensor);
    check_like(memory, shape, &dtype, what, index);
    return memory;
  }

  TensorMemory read_scores(const py::handle& scores, const Shape& shape, size_t index) {
    if (py::isinstance<py::float_>(scores) && shape.ndim == 0) {
      numbers_.push_back(scores.cast<double>());
      return {reinterpret_cast<std::byte*>(&numbers_.back()), shape, {}, Dtype::kFloat64};
    }
    const BorrowedMemory memory = borrow_memory(scores);
    check_like(memory, shape, nullptr, "scores", index);
    return memory;
  }

  py::object kept_;
  std::deque<double> numbers_;  // scores that were given as such
  MaskedReduction reduction_;
};

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

std::optional<Route> parse_route(std::string_view name) {
  if (name == "fast") return std::nullopt;
  if (name == "wire") return Route::kWire;
  if (name == "dense") return Route::kDense;
  throw UsageError(str_cat("route=", name, " is not one"), "", "Use fast, wire or dense.");
}

}  // namespace

void bind_masked(py::module_& module) {
  using released = py::call_guard<py::gil_scoped_release>;
  module.def("exchange_bytes", &exchange_bytes, py::arg("comm"), py::arg("mine"), py::arg("bound"),
             py::arg("slot_bytes"), py::arg("plan") = 0,
             "Every rank's bytes for every other rank, by way of an exchange. Within a call.");
  py::class_<BoundMaskedReduction>(module, "MaskedReduction",
                                   "This rank's part of one masked all-reduce.")
      .def(py::init([](const py::list& values, const py::list& scores, const py::list& out,
                       const std::optional<py::list>& counts,
                       const std::optional<py::list>& residual, const std::string& granularity,
                       const std::string& op, double threshold, double fill, bool out_is_filled,
                       int64_t bucket_bytes, const std::string& route) {
             const MaskedOptions options{parse_masked_op(op), threshold,     fill,
                                         counts.has_value(),  out_is_filled, bucket_bytes,
                                         parse_route(route)};
             return std::make_unique<BoundMaskedReduction>(values, scores, out, counts, residual,
                                                           granularity, options);
           }),
           py::arg("values"), py::arg("scores"), py::arg("out"), py::arg("counts"),
           py::arg("residual"), py::arg("granularity"), py::arg("op"), py::arg("threshold"),
           py::arg("fill"), py::arg("out_is_filled") = false, py::arg("bucket_bytes") = 0,
           py::arg("route") = "wire")
      .def(
          "read_scores", [](BoundMaskedReduction& self) { return self.get().read_scores(); },
          released(), "The first tensor with a NaN score, or -1.")
      .def(
          "agree",
          [](BoundMaskedReduction& self, Communicator& comm, uint64_t statement,
             double wire_density) { return self.get().agree(comm, statement, wire_density); },
          py::arg("comm"), py::arg("statement"), py::arg("wire_density"), released(),
          "Whether all ranks made the same statement; then also on a route.")
      .def_static("refuse", &MaskedReduction::refuse, py::arg("comm"), released(),
                  "What a rank with wrong arguments calls while the others agree.")
      .def_property_readonly("route",
                             [](BoundMaskedReduction& self) {
                               return self.get().route() == Route::kWire ? "wire" : "dense";
                             })
      .def(
          "run",
          [](BoundMaskedReduction& self, Communicator& comm, uint64_t plan) {
            self.get().run(comm, plan);
          },
          py::arg("comm"), py::arg("plan"), released())
      .def_property_readonly("kept", [](BoundMaskedReduction& self) { return self.get().kept(); })
      .def_property_readonly("wire_bytes",
                             [](BoundMaskedReduction& self) { return self.get().wire_bytes(); })
      .def_property_readonly("dense_bytes",
                             [](BoundMaskedReduction& self) { return self.get().dense_bytes(); })
      .def_property_readonly("staging_bytes",
                             [](BoundMaskedReduction& self) { return self.get().staging_bytes(); });
}

}  // namespace hybridengine
