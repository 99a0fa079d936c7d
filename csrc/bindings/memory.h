// Where a Python tensor lies: any object that speaks DLPack, such as torch and numpy arrays.
//
// What it is not: an owner. The caller keeps the Python object alive, and does not resize it, for
// as long as it uses the address. Called by the bindings of device/ and engine/.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "base/dtype.h"
#include "device/copy.h"
#include "engine/memory.h"

namespace hybridengine {

struct BorrowedMemory : TensorMemory {
  bool read_only = false;

  StridedEnd end() const { return {data, strides, dtype}; }
};

/// Reads address, shape, strides and dtype. Takes the exchange table of the object's type where it
/// has one (tens of nanoseconds), otherwise calls __dlpack__. Tensors that require grad are read
/// like others. Needs the GIL. Throws UsageError, naming what it found, for an object that is not a
/// tensor, lies on another device, has an element type that the engine does not move, has no memory
/// (meta tensors) or would only give a copy of itself. `exchange=false` leaves the table out.
BorrowedMemory borrow_memory(pybind11::handle object, bool exchange = true);

/// The same for memory that will be written. Throws UsageError where it is read-only.
BorrowedMemory borrow_writable(pybind11::handle object);

}  // namespace hybridengine
