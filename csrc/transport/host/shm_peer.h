// ShmPeer: what an endpoint of shm holds of one other rank. Plain state; shm_connect fills it and
// shm uses it.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>

#include "transport/host/fd.h"
#include "transport/host/process.h"
#include "transport/host/seqpacket.h"

namespace hybridengine {

struct ShmPeer {
  struct Outgoing {
    Message message;
    std::shared_ptr<const Fd> passed;  // may be null
  };

  struct Published {
    Fd passed;  // until it is mapped
    size_t bytes = 0;
    Mapping memory;
  };

  bool expected = false;  // its address was given
  Fd socket;              // empty: not connected, or lost
  Process process;
  Mapping board;
  Fd staged;                // passed, and not mapped yet
  size_t staged_bytes = 0;  // of the newest staging
  Mapping window;
  std::unordered_map<uint64_t, Published> segments;
  std::deque<Outgoing> outbox;  // waits for room in the socket
  bool said_bye = false;
};

}  // namespace hybridengine
