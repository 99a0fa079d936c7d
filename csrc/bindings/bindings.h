// One function per folder of the core: adds that folder's classes to the Python module `_core`.
// Bound names equal C++ names. Whatever can wait releases the GIL.
#pragma once

#include <pybind11/pybind11.h>

namespace hybridengine {

/// Runs Python's pending signal handlers, taking the GIL if need be; throws what they raise
/// (Ctrl-C). Cheap enough for every 100 ms. To be called while waiting: CommOptions::between.
void check_signals();

void bind_build(pybind11::module_& module);       // build_facts
void bind_base(pybind11::module_& module);        // errors, dtypes, environment, log, trace
void bind_layout(pybind11::module_& module);      // Spec, LayoutRule, Layout, bind
void bind_plan(pybind11::module_& module);        // Plan, make_plan
void bind_schedule(pybind11::module_& module);    // Schedule, make_schedule
void bind_memory(pybind11::module_& module);      // describe_memory, for tests
void bind_device(pybind11::module_& module);      // copy_strided, for tests
void bind_transport(pybind11::module_& module);   // registry; one endpoint, for tests
void bind_comm(pybind11::module_& module);        // Communicator
void bind_collective(pybind11::module_& module);  // Collectives
void bind_engine(pybind11::module_& module);      // Execution, Report
void bind_masked(pybind11::module_& module);      // MaskedReduction; exchange_bytes, for tests

}  // namespace hybridengine
