// loopback: the ranks are threads of this process. For tests, and for seeing a whole run in one
// debugger. A peer's region is mapped where its owner has it.
#include "transport/threads/in_process.h"

namespace hybridengine {

extern const TransportEntry kLoopback;

constinit const TransportEntry kLoopback{
    .name = "loopback",
    .family = "threads",
    .summary = "threads of one process",
    .caps = {.maps = true, .pull = true},
    .probe = [] { return Probe{.available = true, .reason = ""}; },
    .make = [](Rank rank, int32_t world, const std::string& group) -> std::unique_ptr<Endpoint> {
      return std::make_unique<InProcessEndpoint>(kLoopback, rank, world, group);
    },
};

}  // namespace hybridengine
