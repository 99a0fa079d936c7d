// ShmPeer: what an endpoint of shm holds of one other rank. Plain state; shm_connect fills it and
// shm uses it.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>

#include "transport/host/fd.h"
#include "transport/host/mailbox.h"
#include "transport/host/process.h"
#include "transport/host/seqpacket.h"
#include "transport/region.h"

namespace hybridengine {

struct ShmPeer {
  struct Outgoing {
    Message message;
    std::shared_ptr<const Fd> passed;  // may be null
    uint64_t after = 0;                // see FrameHeader
  };

  bool expected = false;  // its address was given
  Fd socket;              // empty: not connected, or lost
  Process process;
  Mapping board;
  Mailbox mail;
  uint64_t frames_posted = 0, frames_taken = 0;                 // by socket
  std::unordered_map<uint64_t, Mapping> regions;                // that it has offered, by number
  std::unordered_map<uint64_t, std::weak_ptr<Region>> offered;  // to it
  std::deque<Outgoing> outbox;                                  // waits for room in the socket
  bool waits_for_room = false;
  bool said_bye = false;
};

}  // namespace hybridengine
