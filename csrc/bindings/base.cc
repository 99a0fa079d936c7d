#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/env.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/trace.h"
#include "bindings/bindings.h"

namespace py = pybind11;

namespace hybridengine {
namespace {

py::list env_table() {
  py::list rows;
  for (const EnvVariable& variable : env_variables()) {
    py::dict row;
    row["name"] = variable.name;
    row["meaning"] = variable.meaning;
    row["default"] = variable.default_value;
    row["value"] = shown_value(variable);
    row["legal"] = variable.legal;
    rows.append(row);
  }
  return rows;
}

py::dict dtype_table() {
  py::dict bytes;
  for (int at = 0; at < kNumDtypes; ++at) {
    const auto dtype = static_cast<Dtype>(at);
    bytes[py::str(std::string(dtype_name(dtype)))] = dtype_bytes(dtype);
  }
  return bytes;
}

/// A TraceSpan as a Python context manager.
class PySpan {
 public:
  PySpan(std::string subsystem, std::string name)
      : subsystem_(parse_subsystem(subsystem)), name_(std::move(name)) {}
  void enter() { span_ = std::make_unique<TraceSpan>(subsystem_, name_); }
  void exit() { span_.reset(); }
  void arg(const std::string& key, int64_t value) {
    if (span_) span_->arg(key, value);
  }
  void arg_text(const std::string& key, const std::string& text) {
    if (span_) span_->arg(key, std::string_view(text));
  }

 private:
  Subsystem subsystem_;
  std::string name_;
  std::unique_ptr<TraceSpan> span_;
};

/// Shown, and pickled, under the name by which users catch it.
template <class E>
void bind_error(py::module_& module, const char* name, PyObject* base, const char* doc) {
  auto& error = py::register_exception<E>(module, name, base);
  error.attr("__module__") = "hybridengine";
  error.attr("__doc__") = doc;
}

void bind_errors(py::module_& module) {
  bind_error<UsageError>(module, "UsageError", PyExc_ValueError,
                         "A wrong call, or data that does not fit. Raised on every rank of a "
                         "collective call, before anything is written; the next call works.");
  bind_error<TransportError>(module, "TransportError", PyExc_RuntimeError,
                             "A rank died, raised or left; the text names it. What was written is "
                             "undefined, and the communicator is dead: make a new one.");
  bind_error<TimeoutError>(module, "TimeoutError", PyExc_TimeoutError,
                           "A rank gave no sign in time; the text names it. What was written is "
                           "undefined, and the communicator is dead: make a new one.");
  bind_error<InternalError>(
      module, "InternalError", PyExc_RuntimeError,
      "A promise inside the engine is broken: a fault of hybridengine. Please "
      "report it.");
}

void bind_env(py::module_& module) {
  module.def(
      "env_table", &env_table,
      "One dict per environment variable: name, meaning, default, value, legal. The value of "
      "a secret is 'set' or 'unset'.");
  module.def("check_env", &check_env,
             "Raises UsageError for the first variable that is not legal.");
  module.def("unknown_env_names", &unknown_env_names,
             "Names in the environment that look like ours and are not.");
  module.def(
      "env_timeout_s", [] { return static_cast<double>(env_timeout().count()) / 1000; },
      "Seconds without progress.");
  module.def(
      "env_enter_timeout_s", [] { return static_cast<double>(env_enter_timeout().count()) / 1000; },
      "Seconds to wait for a living rank to enter.");
  module.def("env_dump", &env_dump, "The folder for printed plans and schedules; '' is off.");
  module.def("env_check", &env_check, "Whether every plan is proved before it is used.");
  module.def("env_transport", &env_transport, "'auto' or a name that only the registry can judge.");
  module.def("env_token", &env_token, "The secret itself. Never print it.");
}

void bind_log(py::module_& module) {
  module.def(
      "log",
      [](const std::string& level, const std::string& subsystem, const std::string& text) {
        const LogLevel parsed_level = parse_log_level(level);
        const Subsystem parsed_subsystem = parse_subsystem(subsystem);
        const py::gil_scoped_release release;  // stderr may be a full pipe
        log(parsed_level, parsed_subsystem, text);
      },
      py::arg("level"), py::arg("subsystem"), py::arg("text"),
      "Writes lines to stderr where level and subsystem are shown. Raises UsageError "
      "for names that do not exist.");
  module.def("refresh_log", &refresh_log, "Reads HYBRIDENGINE_LOG and _LOG_SUBSYS again.");
  module.def("set_rank", &set_rank, py::arg("rank"),
             "The rank this process speaks as in logs and traces; -1: none.");
  module.def("set_thread_rank", &set_thread_rank, py::arg("rank"),
             "The same for this thread only, where ranks are threads; returns what it was.");
}

void bind_trace(py::module_& module) {
  py::class_<PySpan>(module, "TraceSpan", "with TraceSpan(subsystem, name): shows it in the trace.")
      .def(py::init<std::string, std::string>(), py::arg("subsystem"), py::arg("name"))
      .def("__enter__",
           [](py::object self) {
             self.cast<PySpan&>().enter();
             return self;
           })
      .def("__exit__", [](PySpan& self, const py::args&) { self.exit(); })
      .def("arg", &PySpan::arg, py::arg("key"), py::arg("value"))
      .def("arg", &PySpan::arg_text, py::arg("key"), py::arg("text"));
  module.def("flush_trace", &flush_trace, py::call_guard<py::gil_scoped_release>(),
             "Writes the trace file; nothing when HYBRIDENGINE_TRACE is unset.");
  module.def("refresh_trace", &refresh_trace, py::call_guard<py::gil_scoped_release>(),
             "Reads HYBRIDENGINE_TRACE again.");
}

}  // namespace

void check_signals() {
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void bind_base(py::module_& module) {
  bind_errors(module);
  bind_env(module);
  bind_log(module);
  bind_trace(module);
  module.def("check_signals", &check_signals, py::call_guard<py::gil_scoped_release>(),
             "Runs pending signal handlers, as every wait in the core does.");
  module.def("dtype_table", &dtype_table, "Bytes per element, by dtype name, in the core's order.");
  module.def(
      "digest", [](const py::bytes& bytes) { return digest_of(std::string_view(bytes)); },
      py::arg("bytes"), "The 64-bit digest that ranks compare.");
}

}  // namespace hybridengine
