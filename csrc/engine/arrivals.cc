// What peers say to an execution, and what becomes of it.
#include <array>

#include "base/error.h"
#include "engine/execution.h"

namespace hybridengine {

bool Execution::handle_arrivals() {
  arrivals_.clear();
  comm_.drain(arrivals_);
  for (const Arrival& arrival : arrivals_) {
    if (arrival.message.plan != options_.plan)
      throw TransportError("two ranks run different plans",
                           str_cat("rank ", rank_, " and rank ", arrival.peer, ", digests ",
                                   options_.plan, " and ", arrival.message.plan),
                           "Every rank must call the same resharder, in the same order.");
    if (!take(arrival.message, arrival.peer))
      throw TransportError(
          "a peer sent a message that fits no bucket",
          str_cat("rank ", arrival.peer, ", kind ", static_cast<int>(arrival.message.kind),
                  ", bucket ", arrival.message.bucket),
          "Do all ranks run the same version?");
    comm_.made_progress();
  }
  return !arrivals_.empty();
}

/// False where the message is not one that this peer may send now.
bool Execution::take(const Message& message, Rank peer) {
  if (message.bucket >= schedule_->buckets().size()) return false;
  const auto id = static_cast<int32_t>(message.bucket);
  const Bucket& bucket = bucket_of(id);
  Incoming& incoming = incoming_[id];
  switch (message.kind) {
    case MessageKind::kAddresses: {
      const Plan& plan = schedule_->plan();
      const std::array<const Layout*, 2> layouts{&plan.src(), &plan.dst()};
      tables_.add_part(std::span(layouts).first(plan.reduces() ? 2 : 1), peer, message.text,
                       message.offset, message.value);
      return true;
    }
    case MessageKind::kReady:
      if (bucket.src != peer || bucket.dst != rank_ || !tables_.knows(peer, message.offset))
        return false;
      if (incoming.way != Way::kPull || incoming.granted) return true;
      incoming.granted = true;
      pulls_.push_back(message);
      return true;
    case MessageKind::kGranted:
      if (!outgoing_open_[id] || bucket.dst != peer) return false;
      if (bucket.step == 1 && !groups_.at(bucket.group).folded)
        groups_.at(bucket.group).granted.push_back(message);
      else
        send_bucket(message, peer);
      return true;
    case MessageKind::kLanded:
      if (!incoming.open || !incoming.granted || incoming.way == Way::kPull || bucket.src != peer)
        return false;
      if (group_of(bucket) != nullptr)
        receive_contribution(message, peer);
      else
        receive_bucket(message, peer);
      return true;
    case MessageKind::kReleased:
      if (!outgoing_open_[id] || bucket.dst != peer) return false;
      note_sent(id, peer);
      ++report_.read_buckets;
      return true;
    default:
      return false;
  }
}

bool Execution::pull_next() {
  if (pulls_.empty()) return false;
  const Message ready = pulls_.front();
  pulls_.pop_front();
  const auto id = static_cast<int32_t>(ready.bucket);
  const Bucket& bucket = bucket_of(id);
  pull(bucket);
  if (options_.verify) compare_digests(ready, bucket, nullptr);
  note_received(id, bucket.src);
  comm_.send(bucket.src, message(MessageKind::kReleased, id));
  comm_.made_progress();
  return true;
}

}  // namespace hybridengine
