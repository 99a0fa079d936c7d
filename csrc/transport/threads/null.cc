// null: threads of this process exchange messages but no payload, so that a run over many ranks
// shows its schedule, its waits and its bytes without needing the memory of a model.
#include "transport/threads/in_process.h"

namespace hybridengine {

extern const TransportEntry kNull;

constinit const TransportEntry kNull{
    .name = "null",
    .family = "null",
    .summary = "threads of one process, bytes accounted for and not moved",
    .caps = {.payload = false, .page = false},
    .probe = [] { return Probe{.available = true, .reason = ""}; },
    .make = [](Rank rank, int32_t world, const std::string& group) -> std::unique_ptr<Endpoint> {
      return std::make_unique<InProcessEndpoint>(kNull, rank, world, group);
    },
};

}  // namespace hybridengine
