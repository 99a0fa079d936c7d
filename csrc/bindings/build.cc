#include "bindings/bindings.h"
#include "build_facts.h"

namespace hybridengine {
namespace {

pybind11::dict build_facts_dict() {
  pybind11::dict facts;
  facts["version"] = build_facts::kVersion;
  facts["commit"] = build_facts::kCommit;
  facts["compiler"] = build_facts::kCompiler;
  facts["build_type"] = build_facts::kBuildType;
  facts["sanitize"] = build_facts::kSanitize;
  facts["cuda"] = build_facts::kCuda;
  facts["cuda_reason"] = build_facts::kCudaReason;
  facts["nccl_header"] = build_facts::kNcclHeader;
  facts["nccl_reason"] = build_facts::kNcclReason;
  facts["rdma_header"] = build_facts::kRdmaHeader;
  facts["rdma_reason"] = build_facts::kRdmaReason;
  return facts;
}

}  // namespace

void bind_build(pybind11::module_& module) {
  module.def("build_facts", &build_facts_dict,
             "What this build found: version, commit, compiler, CUDA, the NCCL and RDMA headers.");
}

}  // namespace hybridengine
