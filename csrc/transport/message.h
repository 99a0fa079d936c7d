// Message: what ranks say to each other; and Arrival: what comes out of an endpoint.
//
// A message has a field for everything that any kind says; which of them count, its kind tells.
// Small and of fixed size but for `text`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/rank.h"
#include "transport/region.h"

namespace hybridengine {

enum class MessageKind : uint32_t {
  kBlob,       // comm: `part` of a blob, as text
  kAddresses,  // engine: `part` of a table of addresses, as text
  kReady,      // engine: bucket may be read where it lies, at `addresses`
  kGranted,    // engine: bucket may be written at `place`, or, where `direct`, to its final places
               // in that region; null's have none
  kLanded,     // engine: bucket's bytes are there
  kReleased,   // engine: bucket has been read
  kFailed,     // comm: rank `culprit` has failed; text says how
  kBye,        // the sender closes in an orderly way
};

/// Where the text of a message belongs in something longer.
struct TextPart {
  uint64_t offset = 0;
  uint64_t total_bytes = 0;
};

struct Message {
  MessageKind kind = MessageKind::kBlob;
  uint32_t bucket = 0;  // engine: or packet
  uint64_t call = 0;
  uint64_t plan = 0;  // engine: digest of the schedule that this message belongs to
  TextPart part;
  RegionRef place;
  bool direct = false;
  Rank culprit = 0;
  uint64_t addresses = 0;  // digest of the sender's table
  uint64_t digest = 0;     // of the bucket's bytes when verifying
  uint64_t num_bytes = 0;  // of a packet
  std::string text;        // at most kMaxTextBytes
};

inline constexpr size_t kMaxTextBytes = 32 << 10;

/// Something that came out of poll(): a message, the end of a put or a get, or the loss of a peer.
struct Arrival {
  enum class Kind : uint8_t { kMessage, kDone, kLost };
  Kind kind = Kind::kMessage;
  Rank peer = 0;
  Message message;
  std::string reason;   // of a loss: "process 4711 died"
  uint64_t ticket = 0;  // of what is done (link.h)
};

}  // namespace hybridengine
