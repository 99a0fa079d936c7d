#include "bindings/bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The compiled core of hybridengine.";
  hybridengine::bind_build(module);
  hybridengine::bind_base(module);
  hybridengine::bind_transport(module);
  hybridengine::bind_comm(module);
  hybridengine::bind_engine(module);
  hybridengine::bind_masked(module);
  hybridengine::bind_collective(module);
  hybridengine::bind_layout(module);
  hybridengine::bind_plan(module);
  hybridengine::bind_schedule(module);
  hybridengine::bind_memory(module);
  hybridengine::bind_device(module);
}
