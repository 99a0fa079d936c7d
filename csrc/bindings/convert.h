// Small conversions between the core's plain values and Python's.
#pragma once

#include <pybind11/pybind11.h>

#include <string_view>

#include "layout/box.h"

namespace hybridengine {

inline pybind11::tuple to_tuple(int ndim, const Dims& dims) {
  pybind11::tuple result(ndim);
  for (int dim = 0; dim < ndim; ++dim) result[dim] = dims[dim];
  return result;
}

/// The bytes object's own memory: valid while it lives.
inline std::string_view as_view(const pybind11::bytes& bytes) {
  char* data = nullptr;
  pybind11::ssize_t size = 0;
  if (PyBytes_AsStringAndSize(bytes.ptr(), &data, &size) != 0) throw pybind11::error_already_set();
  return {data, static_cast<size_t>(size)};
}

}  // namespace hybridengine
