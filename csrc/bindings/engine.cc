#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "bindings/memory.h"
#include "comm/call_scope.h"
#include "comm/lane.h"
#include "engine/fresh_memory.h"
#include "engine/huge_pages.h"
#include "engine/run.h"
#include "engine/small_run.h"

namespace py = pybind11;

namespace hybridengine {
namespace {

std::vector<TensorMemory> borrow_sources(const py::list& tensors) {
  std::vector<TensorMemory> memory;
  memory.reserve(tensors.size());
  for (const py::handle tensor : tensors) memory.push_back(borrow_memory(tensor));
  return memory;
}

std::vector<TensorMemory> borrow_targets(const py::list& tensors) {
  std::vector<TensorMemory> memory;
  memory.reserve(tensors.size());
  for (const py::handle tensor : tensors) memory.push_back(borrow_writable(tensor));
  return memory;
}

template <class Body>
void with_gil(const Body& body) {
  const py::gil_scoped_acquire held;
  body();
}

/// One run, without an event before its end.
class WholeRun {
 public:
  /// `dst` is a list, or makes one. `refused` tells in better words why tensors do not fit.
  WholeRun(const py::list& src, const py::object& dst, const py::function& refused)
      : src_(src), dst_(dst), refused_(refused) {}

  const py::list& targets() const { return targets_; }

  /// Within a call, without the GIL.
  Report run(Communicator& comm, Routine& routine, const std::vector<int32_t>& aliased,
             bool small) {
    std::vector<TensorMemory> src, dst;
    try {
      with_gil([&] {
        targets_ = is_made() ? py::list(dst_()) : py::list(dst_);
        src = borrow_sources(src_);
        dst = borrow_targets(targets_);
      });
      if (small) return run_small(comm, routine, std::move(src), std::move(dst), aliased);
      Run run(comm, routine, std::move(src), std::move(dst), aliased);
      run.advance();
      return run.report();
    } catch (const UsageError&) {
      with_gil([&] { refused_(targets_); });
      throw;
    }
  }
  /// After a failure. The frames of what was raised would keep the memory of results that were
  /// made for as long as somebody keeps that.
  void drop_results() {
    with_gil([&] {
      if (is_made()) targets_.attr("clear")();
    });
  }

 private:
  bool is_made() const { return !PyList_Check(dst_.ptr()); }

  const py::list& src_;
  const py::object& dst_;
  const py::function& refused_;
  py::list targets_;
};

/// (targets, report). What Python raises in it the other ranks are told in Python's words.
py::tuple run_as_call(Communicator& comm, double timeout_s, Routine& routine, const py::list& src,
                      const py::object& dst, const std::vector<int32_t>& aliased, bool small,
                      const py::function& refused) {
  comm.set_timeout(to_milliseconds(timeout_s, "timeout"));
  WholeRun run(src, dst, refused);
  Report report;
  {
    const py::gil_scoped_release release;
    CallScope call(comm);
    call.run([&] {
      try {
        report = run.run(comm, routine, aliased, small);
      } catch (const std::exception& error) {
        run.drop_results();
        call.fail(reason_of(error));
        throw;
      }
    });
    call.leave();
  }
  return py::make_tuple(run.targets(), std::move(report));
}

/// Holds the Python tensors for as long as the run, or a peer, may use their addresses.
class BoundRun {
 public:
  BoundRun(Communicator& comm, Routine& routine, const py::list& src, const py::list& dst,
           const std::vector<int32_t>& aliased) {
    std::vector<TensorMemory> sources = borrow_sources(src), targets = borrow_targets(dst);
    for (const py::handle tensor : src) sources_.append(tensor);
    for (const py::handle tensor : dst) targets_.append(tensor);
    const py::gil_scoped_release release;  // staging is reserved
    run_.emplace(comm, routine, std::move(sources), std::move(targets), aliased);
  }

  py::tuple advance() {
    Event event;
    {
      py::gil_scoped_release release;
      event = run_->advance();
    }
    if (event.kind == Event::Kind::kReleased) sources_[event.local] = py::none();
    constexpr const char* kNames[] = {"done", "need", "finished", "released"};
    return py::make_tuple(kNames[static_cast<int>(event.kind)], event.local);
  }

  void provide(int32_t local, const py::object& tensor) {
    provided_[py::int_(local)] = tensor;
    run_->provide(local, borrow_writable(tensor));
  }

  /// The caller took a finished tensor: it may be gone from now on.
  void release(int32_t local) { provided_.attr("pop")(local); }

  const Report& report() const { return run_->report(); }

 private:
  py::list sources_, targets_;
  py::dict provided_;
  std::optional<Run> run_;
};

std::string describe_program(Routine& routine, const py::list& src, const py::list& dst) {
  std::vector<TensorMemory> tensors;
  for (const py::list& list : {src, dst})
    for (const py::handle tensor : list) tensors.push_back(borrow_memory(tensor));
  return routine.program_for(tensors).to_string();
}

py::dict to_dict(const Report& report) {
  py::dict result;
  result["seconds"] = report.seconds;
  result["wait_seconds"] = report.wait_seconds;
  result["pack_seconds"] = report.pack_seconds;
  result["unpack_seconds"] = report.unpack_seconds;
  result["local_seconds"] = report.local_seconds;
  result["received_bytes"] = report.received_bytes;
  result["sent_bytes"] = report.sent_bytes;
  result["local_bytes"] = report.local_bytes;
  result["staging_bytes"] = report.staging_bytes;
  result["buckets_in"] = report.buckets_in;
  result["buckets_out"] = report.buckets_out;
  result["direct_buckets"] = report.direct_buckets;
  result["pulled_buckets"] = report.pulled_buckets;
  result["shown_buckets"] = report.shown_buckets;
  result["read_buckets"] = report.read_buckets;
  result["verified_buckets"] = report.verified_buckets;
  py::list pairs;
  for (const PairBytes& pair : report.pairs)
    pairs.append(py::make_tuple(pair.peer, pair.received_bytes, pair.sent_bytes));
  result["pairs"] = pairs;
  return result;
}

void bind_fresh_memory(py::module_& module) {
  const auto buffer_of = [](const Span& span) {
    return py::buffer_info(reinterpret_cast<unsigned char*>(span.data),
                           static_cast<py::ssize_t>(span.bytes));
  };
  py::class_<Lease, std::shared_ptr<Lease>>(module, "Lease", py::buffer_protocol(),
                                            "The right to use a region; a writable buffer.")
      .def_buffer([=](Lease& lease) { return buffer_of(lease.span()); });
  py::class_<FreshMemory, std::shared_ptr<FreshMemory>>(
      module, "FreshMemory", "Regions for results, lent one at a time and used again.")
      .def(py::init<size_t>(), py::arg("num_bytes"))
      .def(
          "lend", [](FreshMemory& self) { return self.lend(check_signals); },
          py::call_guard<py::gil_scoped_release>(),
          "A region that nobody uses, as a Lease: whatever is made of it keeps it.")
      .def_property_readonly("reserve_seconds", &FreshMemory::reserve_seconds,
                             "How long the last lend() reserved memory.");
}

/// Memory of contiguous tensors.
std::vector<Span> spans_of(const py::list& tensors) {
  std::vector<Span> spans;
  for (const py::handle tensor : tensors) {
    const TensorMemory memory = borrow_memory(tensor);
    if (is_contiguous(memory))
      spans.push_back(
          {memory.data, static_cast<size_t>(memory.shape.num_elems()) * dtype_bytes(memory.dtype)});
  }
  return spans;
}

size_t collapse(const py::list& tensors) {
  const std::vector<Span> spans = spans_of(tensors);
  const py::gil_scoped_release release;
  size_t collapsed = 0;
  for (const Span& span : spans) collapsed += collapse_to_huge_pages(span);
  return collapsed;
}

void bind_huge_pages(py::module_& module) {
  using released = py::call_guard<py::gil_scoped_release>;
  module.def("collapse", &collapse, py::arg("tensors"),
             "Backs tensors with huge pages where the kernel can; returns the bytes that are.");
  py::class_<HugePages>(module, "HugePages", "Backs tensors with huge pages, beside runs.")
      .def(py::init([](const py::list& tensors) {
             return std::make_unique<HugePages>(spans_of(tensors));
           }),
           py::arg("tensors"))
      .def("pause", &HugePages::pause, released(), "Before a run.")
      .def("resume", &HugePages::resume, released(), "After a run.")
      .def_property_readonly("done", &HugePages::done)
      .def_property_readonly("collapsed_bytes", &HugePages::collapsed_bytes)
      .def_property_readonly("seconds", &HugePages::seconds, "Spent so far.");
}

}  // namespace

void bind_engine(py::module_& module) {
  bind_fresh_memory(module);
  bind_huge_pages(module);
  module.def(
      "packed_offsets",
      [](const std::shared_ptr<Layout>& layout, Rank rank) {
        return packed_offsets(*layout, rank);
      },
      py::arg("layout"), py::arg("rank"),
      "Byte offsets of a rank's local tensors in a segment, and one past the last.");
  py::class_<Routine>(module, "Routine", "What is kept of a run that is made again and again.")
      .def(
          py::init([](std::shared_ptr<Schedule> schedule, uint64_t plan, std::vector<Rank> readable,
                      bool verify, int64_t open_bytes, bool tell_released) {
            return std::make_unique<Routine>(
                std::move(schedule),
                RunOptions{plan, std::move(readable), verify, open_bytes, tell_released});
          }),
          py::arg("schedule"), py::arg("plan") = 0, py::arg("readable") = std::vector<Rank>{},
          py::arg("verify") = false, py::arg("open_bytes") = 0, py::arg("tell_released") = false)
      .def_property_readonly("shown_bytes", &Routine::shown_bytes,
                             "What this rank shows at most where a run goes by a small exchange.")
      .def("program", &describe_program, py::arg("src"), py::arg("dst"),
           "The program of this rank for these tensors, as a text.");
  py::class_<Report>(module, "RunReport", "What happened in one run, on this rank.")
      .def("to_dict", &to_dict);
  py::class_<BoundRun>(module, "Run", "One rank's part of one run of a schedule.")
      .def(py::init<Communicator&, Routine&, const py::list&, const py::list&,
                    const std::vector<int32_t>&>(),
           py::arg("comm"), py::arg("routine"), py::arg("src"), py::arg("dst"),
           py::arg("aliased") = std::vector<int32_t>{}, py::keep_alive<1, 2>(),
           py::keep_alive<1, 3>())
      .def("advance", &BoundRun::advance,
           "Goes on until an event: ('done', -1), ('need', i), ('finished', i), or, where the "
           "routine tells it, ('released', i): source tensor i may change.")
      .def("provide", &BoundRun::provide, py::arg("local"), py::arg("tensor"))
      .def("release", &BoundRun::release, py::arg("local"))
      .def_property_readonly("report", &BoundRun::report, py::return_value_policy::copy);
  module.def("run", &run_as_call, py::arg("comm"), py::arg("timeout"), py::arg("routine"),
             py::arg("src"), py::arg("dst"), py::arg("aliased"), py::arg("small"),
             py::arg("refused"),
             "A run as a call by itself: (destination tensors, report). `dst` may be what makes "
             "them; `small`: by one small exchange; `refused` is told them where tensors do not "
             "fit, and may raise better words.");
  module.attr("SHOWN_BYTES") = kLaneBytes;
}

}  // namespace hybridengine
