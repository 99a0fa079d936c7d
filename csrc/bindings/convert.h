// Small conversions between the core's plain values and Python's, and what their texts share.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <string>
#include <string_view>

#include "base/error.h"
#include "layout/box.h"
#include "plan/plan.h"

namespace hybridengine {

inline pybind11::tuple to_tuple(int ndim, const Dims& dims) {
  pybind11::tuple result(ndim);
  for (int dim = 0; dim < ndim; ++dim) result[dim] = dims[dim];
  return result;
}

/// "1 rank", "2 ranks".
inline std::string counted(size_t count, const char* noun) {
  return str_cat(count, " ", noun, count == 1 ? "" : "s");
}

/// "'fsdp2(8)' -> 'vllm(tp=4)', 27 tensors": what the repr of a plan begins with.
inline std::string route_of(const Plan& plan) {
  return str_cat("'", plan.src().text(), "' -> '", plan.dst().text(), "', ",
                 counted(plan.dst().spec().tensors().size(), "tensor"));
}

inline std::chrono::milliseconds to_milliseconds(double seconds, const char* name) {
  if (!(seconds > 0 && seconds < 1e9))
    throw UsageError(str_cat(name, " must be a positive number of seconds"), str_cat(seconds), "");
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3) + 1);
}

/// What the other ranks are told of an error: "ValueError: text". Takes the GIL.
inline std::string reason_of(const std::exception& fault) {
  const auto* raised = dynamic_cast<const pybind11::error_already_set*>(&fault);
  if (raised == nullptr) return str_cat(kind_of(fault), ": ", fault.what());
  const pybind11::error_already_set& error = *raised;
  const pybind11::gil_scoped_acquire held;
  const pybind11::bytes text =
      pybind11::str(error.value()).attr("encode")("utf-8", "backslashreplace");
  return str_cat(std::string(pybind11::str(error.type().attr("__name__"))), ": ",
                 std::string(text));
}

/// The bytes object's own memory: valid while it lives.
inline std::string_view as_view(const pybind11::bytes& bytes) {
  char* data = nullptr;
  pybind11::ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes.ptr(), &data, &size) != 0) throw pybind11::error_already_set();
  return {data, static_cast<size_t>(size)};
}

}  // namespace hybridengine
