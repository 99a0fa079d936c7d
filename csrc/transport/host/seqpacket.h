// Unix sockets that keep the borders of messages: listen, connect, send and receive one frame.
//
// A *frame* is one datagram: a header of fixed size, the text of the message, and at most one
// descriptor that rides along. Nothing here blocks. What arrives is checked before it is used: the
// kinds and lengths of a peer are not trusted. Called by shm.
#pragma once

#include <sys/socket.h>

#include <string>

#include "transport/host/fd.h"
#include "transport/host/frame.h"

namespace hybridengine {

/// A listener whose name nobody can guess and which no file system shows.
struct Listener {
  Fd fd;
  std::string name;
};
Listener listen_unguessable();

/// Who is at the other end, as the kernel saw it at listen() and connect().
ucred credentials(const Fd& socket);

struct Connected {
  Fd socket;      // empty: not yet, or refused
  int error = 0;  // EAGAIN: the listener is busy, try again; ECONNREFUSED: nobody listens
};
Connected connect_to(const std::string& name);
/// The next one who knocks; empty when nobody does. Throws TransportError when out of descriptors.
Fd accept_from(const Fd& listener);

enum class Sent { kDone, kFull, kCrowded, kBroken };
/// kFull: try again when the socket is writable. kCrowded: the descriptors of this user that no
/// receiver has taken yet are as many as it may have open; try again a little later. kBroken:
/// nobody will read it. Throws TransportError when this system does not let a frame of that size
/// through at all.
Sent send_frame(const Fd& socket, const Message& message, uint64_t after, const Fd* passed);

struct Received {
  /// kNoDescriptor: one came with it, and this process may not have any more.
  enum class Kind { kFrame, kNothing, kClosed, kNonsense, kNoDescriptor };
  Kind kind = Kind::kNothing;
  Message message;
  Fd passed;
  std::string reason;  // of the last two
  uint64_t after = 0;  // see FrameHeader
};
Received receive_frame(const Fd& socket);

}  // namespace hybridengine
