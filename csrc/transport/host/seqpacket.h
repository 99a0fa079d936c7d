// Unix sockets that keep the borders of messages: listen, connect, send and receive one frame.
//
// A *frame* is one datagram: a header of fixed size, the text of the message, and at most one
// descriptor that rides along. Nothing here blocks. What arrives is checked before it is used: the
// kinds and lengths of a peer are not trusted. Called by shm.
#pragma once

#include <sys/socket.h>

#include <string>

#include "transport/host/fd.h"
#include "transport/transport.h"

namespace hybridengine {

// Kinds that never leave a transport.
inline constexpr MessageKind kHello{0x100};    // bucket: rank, call: world, text: group; a board
inline constexpr MessageKind kStaging{0x101};  // value: its bytes; the memory
inline constexpr MessageKind kSegment{0x102};  // offset: its number, value: its bytes; the memory
inline constexpr MessageKind kSegmentGone{0x103};  // offset: its number

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

enum class Sent { kDone, kFull, kBroken };
/// kFull: try again when the socket is writable. kBroken: nobody will read it. Throws
/// TransportError when this system does not let a frame of that size through at all.
Sent send_frame(const Fd& socket, const Message& message, const Fd* passed);

struct Received {
  enum class Kind { kFrame, kNothing, kClosed, kNonsense };
  Kind kind = Kind::kNothing;
  Message message;
  Fd passed;
  std::string reason;  // of nonsense
};
Received receive_frame(const Fd& socket);

}  // namespace hybridengine
