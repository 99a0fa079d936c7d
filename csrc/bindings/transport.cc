// The registry of transports, regions, and the media of one rank by themselves.
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
  dict["pull"] = caps.pull;
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

/// A writable buffer over a peer's region; valid until its owner lets go of it or the link closes.
struct MappedMemory {
  Span span;
};

/// One rank's media, closed by close() or with the object.
class RankMedia {
 public:
  RankMedia(const std::string& names, Rank rank, int32_t world, const std::string& group)
      : rank_(rank), world_(world), fabric_(make_fabric(names, rank, world, group)) {}

  Fabric& fabric() const {
    if (!fabric_) throw UsageError("this fabric is closed", "", "Make a new one.");
    return *fabric_;
  }

  Link& link(Rank peer) const { return fabric().link(peer); }

  const Signs* signs(Rank rank) const {
    if (fabric().own_signs().front() == nullptr) return nullptr;  // before connect()
    if (rank == rank_) return fabric().own_signs().front();
    return fabric().connects(rank) ? &fabric().signs(rank) : nullptr;
  }

  bool sent_all() const {
    for (Rank peer = 0; peer < world_; ++peer)
      if (fabric().connects(peer) && !link(peer).sent_all()) return false;
    return true;
  }

  void connect(const std::vector<std::string>& addresses, double timeout_s) {
    fabric().connect(addresses, Clock::now() + duration_of(timeout_s), check_signals);
  }

  std::vector<Arrival> poll(double timeout_s) {
    constexpr std::chrono::microseconds kSlice = std::chrono::milliseconds(100);
    const auto until = Clock::now() + duration_of(timeout_s);
    std::vector<Arrival> arrivals;
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::microseconds>(until - Clock::now());
      fabric().poll(arrivals, std::clamp<std::chrono::microseconds>(left, {}, kSlice));
      if (!arrivals.empty() || Clock::now() >= until) return arrivals;
      check_signals();
    }
  }

  void close() { fabric_.reset(); }

 private:
  Rank rank_;
  int32_t world_;
  std::unique_ptr<Fabric> fabric_;
};

py::buffer_info buffer_of(const Span& span) {
  return {reinterpret_cast<uint8_t*>(span.data), static_cast<py::ssize_t>(span.bytes)};
}

py::tuple tuple_of(const Arrival& arrival) {
  if (arrival.kind == Arrival::Kind::kLost)
    return py::make_tuple("lost", arrival.peer, arrival.reason);
  if (arrival.kind == Arrival::Kind::kDone)
    return py::make_tuple("done", arrival.peer, arrival.ticket);
  const Message& message = arrival.message;
  return py::make_tuple("message", arrival.peer, static_cast<uint32_t>(message.kind),
                        message.bucket, message.call, message.place.offset, message.place.region,
                        py::bytes(message.text), message.plan);
}

py::list poll_list(RankMedia& self, double timeout_s) {
  std::vector<Arrival> arrivals;
  {
    const py::gil_scoped_release released;
    arrivals = self.poll(timeout_s);
  }
  py::list list;
  for (const Arrival& arrival : arrivals) list.append(tuple_of(arrival));
  return list;
}

py::object signs_dict(RankMedia& self, Rank rank) {
  const Signs* signs = self.signs(rank);
  if (signs == nullptr) return py::none();
  py::dict dict;
  dict["heartbeat"] = signs->heartbeat.load();
  dict["call"] = signs->call.load();
  dict["progress"] = signs->progress.load();
  dict["waiting_for"] = signs->waiting_for.load();
  return dict;
}

void show_signs(RankMedia& self, uint64_t heartbeat, uint64_t call, uint64_t progress,
                int32_t waiting_for) {
  for (Signs* const signs : self.fabric().own_signs()) {
    if (signs == nullptr) throw UsageError("there are no signs yet", "", "Call connect() first.");
    signs->heartbeat = heartbeat;
    signs->call = call;
    signs->progress = progress;
    signs->waiting_for = waiting_for;
  }
}

Message message_of(uint32_t kind, uint32_t bucket, uint64_t call, uint64_t offset, uint64_t value,
                   std::string text, uint64_t plan) {
  Message message;
  message.kind = MessageKind{kind};
  message.bucket = bucket;
  message.call = call;
  message.plan = plan;
  message.place = {value, offset};
  message.text = std::move(text);
  return message;
}

/// Of (region, offset, buffer); the buffers are kept in `held`.
std::vector<RemoteRun> runs_of(const py::list& list, bool written,
                               std::vector<py::buffer_info>& held) {
  std::vector<RemoteRun> runs;
  for (const py::handle each : list) {
    const auto [region, offset, buffer] =
        py::cast<std::tuple<uint64_t, uint64_t, py::buffer>>(each);
    held.push_back(buffer.request(written));
    runs.push_back({{region, offset},
                    static_cast<std::byte*>(held.back().ptr),
                    static_cast<size_t>(held.back().size * held.back().itemsize)});
  }
  return runs;
}

uint64_t put(RankMedia& self, Rank peer, const py::list& list, uint32_t kind, uint32_t bucket) {
  std::vector<py::buffer_info> held;
  const std::vector<RemoteRun> runs = runs_of(list, false, held);
  const py::gil_scoped_release released;
  const Message riding = message_of(kind, bucket, 0, 0, 0, "", 0);
  return self.link(peer).put(runs, riding).number;
}

uint64_t get(RankMedia& self, Rank peer, const py::list& list) {
  std::vector<py::buffer_info> held;
  const std::vector<RemoteRun> runs = runs_of(list, true, held);
  const py::gil_scoped_release released;
  return self.link(peer).get(runs).number;
}

void bind_links(py::class_<RankMedia>& of) {
  using released = py::call_guard<py::gil_scoped_release>;
  of.def(
        "medium", [](RankMedia& self, Rank peer) { return self.fabric().medium(peer); },
        py::arg("peer"), "The name of the medium that serves `peer`.")
      .def(
          "why_not_better",
          [](RankMedia& self, Rank peer) { return self.fabric().why_not_better(peer); },
          py::arg("peer"), "Why none of the media before serves it.")
      .def(
          "reaches", [](RankMedia& self, Rank peer) { return self.link(peer).reaches(); },
          py::arg("peer"), released(), "Whether put and get may name its ordinary memory.")
      .def(
          "offer",
          [](RankMedia& self, Rank peer, const RegionPtr& region) {
            self.link(peer).offer(region);
          },
          py::arg("peer"), py::arg("region"), released(), "Lets `peer` write into it.")
      .def(
          "map",
          [](RankMedia& self, Rank peer, uint64_t region) {
            return MappedMemory{self.link(peer).map(region)};
          },
          py::arg("peer"), py::arg("region"), py::keep_alive<0, 1>(),
          "The region of `peer` as a buffer.")
      .def("put", &put, py::arg("peer"), py::arg("runs"), py::arg("kind") = 0,
           py::arg("bucket") = 0,
           "Writes runs (region, offset, buffer) into the memory of `peer`, then a message; where "
           "the region is 0 the offset is an address. Returns the number of the ticket, 0: done. "
           "The buffers stay as they are until then.")
      .def("get", &get, py::arg("peer"), py::arg("runs"), "The same in the other direction.")
      .def(
          "send",
          [](RankMedia& self, Rank peer, uint32_t kind, uint32_t bucket, uint64_t call,
             uint64_t offset, uint64_t value, std::string text, uint64_t plan) {
            self.link(peer).send(
                message_of(kind, bucket, call, offset, value, std::move(text), plan));
          },
          py::arg("peer"), py::arg("kind") = 0, py::arg("bucket") = 0, py::arg("call") = 0,
          py::arg("offset") = 0, py::arg("value") = 0, py::arg("text") = "", py::arg("plan") = 0,
          released(), "Queues a message; does not block.");
}

void bind_fabric(py::module_& module) {
  using released = py::call_guard<py::gil_scoped_release>;
  py::class_<RankMedia> of(module, "Fabric",
                           "The media of one rank by themselves, without calls and deadlines.");
  of.def_static(
        "make",
        [](const std::string& names, Rank rank, int32_t world, const std::string& group) {
          return std::make_unique<RankMedia>(names, rank, world, group);
        },
        py::arg("names"), py::arg("rank"), py::arg("world"), py::arg("group"),
        "One medium ('shm'), several in order of preference ('loopback,shm'), or 'auto'.")
      .def_property_readonly("name", [](const RankMedia& self) { return self.fabric().name(); })
      .def_property_readonly("caps",
                             [](const RankMedia& self) { return dict_of(self.fabric().caps()); })
      .def(
          "address", [](RankMedia& self) { return py::bytes(self.fabric().address()); },
          "What the other ranks need to reach this one.")
      .def("connect", &RankMedia::connect, py::arg("addresses"), py::arg("timeout_s"), released(),
           "Blocks until all ranks with an address are there.")
      .def(
          "staging",
          [](RankMedia& self, size_t bytes) { return self.fabric().staging(bytes, check_signals); },
          py::arg("bytes"), released(), "Own receive memory, kept and grown, or None.")
      .def(
          "release_gone", [](RankMedia& self) { self.fabric().release_gone(); },
          "Lets go of regions that their owners have let go of.")
      .def("poll", &poll_list, py::arg("timeout_s"),
           "What has arrived: ('message', peer, kind, bucket, call, offset, value, text, plan), "
           "('done', peer, ticket) or ('lost', peer, reason).")
      .def("signs", &signs_dict, py::arg("rank"),
           "The signs of `rank` as a dict, None before connect.")
      .def("show", &show_signs, py::kw_only(), py::arg("heartbeat") = 0, py::arg("call") = 0,
           py::arg("progress") = 0, py::arg("waiting_for") = -1, "Writes the own signs.")
      .def_property_readonly(
          "sent_all", [](const RankMedia& self) { return self.sent_all(); },
          "False while a message waits for a slow peer; poll() sends it.")
      .def("close", &RankMedia::close, released(), "Closes all; peers see its loss.");
  bind_links(of);
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
  bind_fabric(module);
}

}  // namespace hybridengine
