// The registry of transports, regions, and one endpoint of a transport for the conformance tests.
#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "bindings/bindings.h"
#include "transport/registry.h"

namespace py = pybind11;

namespace hybridengine {
namespace {

using Clock = std::chrono::steady_clock;

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

py::dict dict_of(const Caps& caps) {
  py::dict dict;
  dict["maps"] = caps.maps;
  dict["processes"] = caps.processes;
  dict["payload"] = caps.payload;
  return dict;
}

py::list list_transports() {
  py::list list;
  for (const TransportEntry& entry : transports()) {
    const Probe probe = entry.probe();
    py::dict dict;
    dict["name"] = entry.name;
    dict["summary"] = entry.summary;
    dict["caps"] = dict_of(entry.caps);
    dict["available"] = probe.available;
    dict["reason"] = probe.reason;
    list.append(dict);
  }
  return list;
}

/// A writable buffer over a peer's region; valid until its owner lets go of it or the endpoint
/// closes.
struct MappedMemory {
  Span span;
};

/// One rank's transport, closed by close() or with the object.
class Endpoint {
 public:
  Endpoint(const std::string& name, Rank rank, int32_t world, const std::string& group)
      : world_(world), transport_(find_transport(name, rank).make(rank, world, group)) {}

  bool sent_all() const {
    for (Rank peer = 0; peer < world_; ++peer)
      if (!transport().sent_all(peer)) return false;
    return true;
  }

  Transport& transport() const {
    if (!transport_) throw UsageError("this endpoint is closed", "", "Make a new one.");
    return *transport_;
  }

  void connect(const std::vector<std::string>& addresses, double timeout_s) {
    transport().connect(addresses, Clock::now() + duration_of(timeout_s), check_signals);
  }

  std::vector<Arrival> poll(double timeout_s) {
    constexpr std::chrono::microseconds kSlice = std::chrono::milliseconds(100);
    const auto until = Clock::now() + duration_of(timeout_s);
    std::vector<Arrival> arrivals;
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::microseconds>(until - Clock::now());
      transport().poll(arrivals, std::clamp<std::chrono::microseconds>(left, {}, kSlice));
      if (!arrivals.empty() || Clock::now() >= until) return arrivals;
      check_signals();
    }
  }

  void close() { transport_.reset(); }

 private:
  int32_t world_;
  std::unique_ptr<Transport> transport_;
};

py::buffer_info buffer_of(const Span& span) {
  return {reinterpret_cast<uint8_t*>(span.data), static_cast<py::ssize_t>(span.bytes)};
}

py::tuple tuple_of(const Arrival& arrival) {
  if (arrival.kind == Arrival::Kind::kLost)
    return py::make_tuple("lost", arrival.peer, arrival.reason);
  const Message& message = arrival.message;
  return py::make_tuple("message", arrival.peer, static_cast<uint32_t>(message.kind),
                        message.bucket, message.call, message.place.offset, message.place.region,
                        py::bytes(message.text), message.plan);
}

py::list poll_list(Endpoint& endpoint, double timeout_s) {
  std::vector<Arrival> arrivals;
  {
    const py::gil_scoped_release released;
    arrivals = endpoint.poll(timeout_s);
  }
  py::list list;
  for (const Arrival& arrival : arrivals) list.append(tuple_of(arrival));
  return list;
}

py::object board_dict(Endpoint& endpoint, Rank rank) {
  const Board* board = endpoint.transport().board(rank);
  if (!board) return py::none();
  py::dict dict;
  dict["heartbeat_ns"] = board->heartbeat_ns.load();
  dict["call"] = board->call.load();
  dict["progress"] = board->progress.load();
  dict["waiting_for"] = board->waiting_for.load();
  return dict;
}

void set_board(Endpoint& endpoint, Rank rank, int64_t heartbeat_ns, uint64_t call,
               uint64_t progress, int32_t waiting_for) {
  Board* board = endpoint.transport().board(rank);
  if (!board) throw UsageError("there is no board yet", "", "Call connect() first.");
  board->heartbeat_ns = heartbeat_ns;
  board->call = call;
  board->progress = progress;
  board->waiting_for = waiting_for;
}

void bind_endpoint(py::module_& module) {
  using released = py::call_guard<py::gil_scoped_release>;
  py::class_<Endpoint>(module, "Endpoint", "One rank's end of a transport, for tests.")
      .def_static(
          "make",
          [](const std::string& name, Rank rank, int32_t world, const std::string& group) {
            return std::make_unique<Endpoint>(name, rank, world, group);
          },
          py::arg("name"), py::arg("rank"), py::arg("world"), py::arg("group"),
          "An endpoint of the transport `name` (or 'auto').")
      .def_property_readonly("name", [](const Endpoint& self) { return self.transport().name(); })
      .def_property_readonly("caps",
                             [](const Endpoint& self) { return dict_of(self.transport().caps()); })
      .def(
          "address", [](Endpoint& self) { return py::bytes(self.transport().address()); },
          "What the other ranks need to reach this one.")
      .def("connect", &Endpoint::connect, py::arg("addresses"), py::arg("timeout_s"), released(),
           "Blocks until all ranks with an address are there.")
      .def(
          "staging",
          [](Endpoint& self, size_t bytes) {
            return self.transport().staging(bytes, check_signals);
          },
          py::arg("bytes"), released(), "Own receive memory, kept and grown, or None.")
      .def(
          "offer",
          [](Endpoint& self, Rank peer, const RegionPtr& region) {
            self.transport().offer(peer, region);
          },
          py::arg("peer"), py::arg("region"), released(), "Lets `peer` write into it.")
      .def(
          "map",
          [](Endpoint& self, Rank peer, uint64_t region) {
            return MappedMemory{self.transport().map(peer, region)};
          },
          py::arg("peer"), py::arg("region"), py::keep_alive<0, 1>(),
          "The region of `peer` as a buffer.")
      .def(
          "release_gone", [](Endpoint& self) { self.transport().release_gone(); },
          "Lets go of regions that their owners have let go of.")
      .def(
          "send",
          [](Endpoint& self, Rank peer, uint32_t kind, uint32_t bucket, uint64_t call,
             uint64_t offset, uint64_t value, std::string text, uint64_t plan) {
            Message message;
            message.kind = MessageKind{kind};
            message.bucket = bucket;
            message.call = call;
            message.plan = plan;
            message.place = {value, offset};
            message.text = std::move(text);
            self.transport().send(peer, message);
          },
          py::arg("peer"), py::arg("kind") = 0, py::arg("bucket") = 0, py::arg("call") = 0,
          py::arg("offset") = 0, py::arg("value") = 0, py::arg("text") = "", py::arg("plan") = 0,
          released(), "Queues a message; does not block.")
      .def("poll", &poll_list, py::arg("timeout_s"),
           "What has arrived: ('message', peer, kind, bucket, call, offset, value, text, plan) or "
           "('lost', peer, reason).")
      .def("board", &board_dict, py::arg("rank"),
           "The board of `rank` as a dict, None before connect.")
      .def("set_board", &set_board, py::arg("rank"), py::kw_only(), py::arg("heartbeat_ns") = 0,
           py::arg("call") = 0, py::arg("progress") = 0, py::arg("waiting_for") = -1,
           "Writes the board of `rank`, which must be the own one.")
      .def_property_readonly(
          "sent_all", [](const Endpoint& self) { return self.sent_all(); },
          "False while a message waits for a slow peer; poll() sends it.")
      .def("close", &Endpoint::close, released(), "Closes the endpoint; peers see its loss.");
}

}  // namespace

void bind_transport(py::module_& module) {
  module.def("transports", &list_transports,
             "The transports of this build, in order of preference, and whether they work here.");
  module.attr("MAX_TEXT_BYTES") = kMaxTextBytes;
  py::class_<Region, RegionPtr>(module, "Region", py::buffer_protocol(),
                                "Memory that peers may reach; a writable buffer.")
      .def(py::init([](size_t bytes, const char* purpose) {
             return Region::make(purpose, bytes, check_signals);
           }),
           py::arg("num_bytes"), py::arg("purpose") = "destination tensors",
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("id", &Region::id)
      .def_property_readonly("place", [](const Region& region) { return region.place().text(); })
      .def_buffer([](Region& region) { return buffer_of(region.span()); });
  py::class_<MappedMemory>(module, "MappedMemory", py::buffer_protocol())
      .def_buffer([](MappedMemory& memory) { return buffer_of(memory.span); });
  bind_endpoint(module);
}

}  // namespace hybridengine
