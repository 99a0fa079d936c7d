#include "transport/host/frame.h"

namespace hybridengine {

FrameHeader header_of(const Message& message) {
  return {static_cast<uint32_t>(message.kind),
          message.bucket,
          message.call,
          message.plan,
          message.part,
          message.place,
          message.direct,
          message.culprit,
          message.addresses,
          message.digest,
          message.num_bytes,
          message.text.size(),
          0};
}

Message message_of(const FrameHeader& header, std::string_view text) {
  return {MessageKind{header.kind},
          header.bucket,
          header.call,
          header.plan,
          header.part,
          header.place,
          header.direct != 0,
          header.culprit,
          header.addresses,
          header.digest,
          header.num_bytes,
          std::string(text)};
}

bool known_kind(uint32_t kind) {
  return kind <= static_cast<uint32_t>(MessageKind::kBye) ||
         (kind >= static_cast<uint32_t>(kHello) && kind <= static_cast<uint32_t>(kWake));
}

}  // namespace hybridengine
