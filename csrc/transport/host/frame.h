// FrameHeader: a message as the ranks of one host pass it on, without its text.
//
// What arrives is checked before it is used: the kinds and lengths of a peer are not trusted.
// Called by seqpacket and mailbox.
#pragma once

#include <string>
#include <string_view>

#include "transport/message.h"

namespace hybridengine {

// Kinds that never leave a transport.
inline constexpr MessageKind kHello{0x100};    // bucket: rank, call: world, text: group; a board
inline constexpr MessageKind kRegion{0x101};   // place: its number, num_bytes; the memory
inline constexpr MessageKind kMailbox{0x102};  // my page of our mailbox may be used
inline constexpr MessageKind kWake{0x103};     // look into the mailbox

struct FrameHeader {
  uint32_t kind = 0;
  uint32_t bucket = 0;
  uint64_t call = 0;
  uint64_t plan = 0;
  TextPart part;
  RegionRef place;
  uint32_t direct = 0;
  int32_t culprit = 0;
  uint64_t addresses = 0;
  uint64_t digest = 0;
  uint64_t num_bytes = 0;
  uint64_t text_bytes = 0;
  uint64_t after = 0;  // messages that the sender had sent by the other way before
};
static_assert(sizeof(FrameHeader) == 104, "no padding");

FrameHeader header_of(const Message& message);
Message message_of(const FrameHeader& header, std::string_view text);

/// Whether `kind` is one of a message.
bool known_kind(uint32_t kind);

}  // namespace hybridengine
