#include "comm/communicator.h"

#include <algorithm>
#include <exception>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

namespace hybridengine {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kSlice{50};  // of a wait: bounds the delay of Ctrl-C

/// How long a farewell may take when a peer does not read.
constexpr milliseconds kFarewell{500};

constexpr int64_t kMessageBytes = 48;  // without its text

}  // namespace

Communicator::Communicator(std::unique_ptr<Fabric> fabric, Rank rank, int32_t world,
                           CommOptions options)
    : fabric_(std::move(fabric)),
      rank_(rank),
      world_(world),
      options_(std::move(options)),
      peers_(world) {}

void Communicator::close() noexcept {
  if (!fabric_) return;
  if (guard_.same_process()) {
    presence_.reset();
    if (!dead()) say_goodbye();
  } else {
    // Its thread runs in the parent only; to destroy what it waits for would wait for it.
    static_cast<void>(presence_.release());
  }
  if (death_.empty()) death_ = "it was closed";
  fabric_.reset();
}

void Communicator::say_goodbye() noexcept {
  Message bye;
  bye.kind = MessageKind::kBye;
  try {
    for (Rank peer = 0; peer < world_; ++peer)
      if (peer != rank_ && peers_[peer].lost.empty()) fabric_->link(peer).send(bye);
    poll_until_sent(kFarewell);
  } catch (const std::exception&) {
    // A peer that is gone needs no farewell; there is nobody left to tell.
  }
}

Fabric& Communicator::fabric() {
  if (!fabric_) check_alive();
  return *fabric_;
}

void Communicator::connect(std::span<const Blob> addresses) {
  const RankScope scope(rank_);
  if (static_cast<int32_t>(addresses.size()) != world_)
    throw UsageError("a communicator needs one address per rank",
                     str_cat(addresses.size(), " addresses, ", world_, " ranks"), "");
  fabric().connect(addresses, Clock::now() + options_.timeout, options_.between);
  mapped_ = fabric_->caps().page;
  small_ = mapped_ ? make_lanes(*this) : make_tree(*this);
  presence_ = std::make_unique<Presence>(*fabric_, rank_, world_);
  entered_at_ = moved_at_ = Clock::now();
  log(LogLevel::kInfo, Subsystem::kComm, "rank ", rank_, " of ", world_, " is connected (",
      fabric_->name(), ")");
}

void Communicator::check_alive() const {
  if (dead())
    throw TransportError("this communicator is dead", death_, "Make a new one on every rank.");
  guard_.check(fabric_->name().c_str());
}

void Communicator::throw_different_calls(Rank peer) const {
  throw TransportError("two ranks make different calls",
                       str_cat("rank ", peer, " does another one, call ", call_),
                       "Every rank must make the same calls in the same order.");
}

void Communicator::enter() {
  check_alive();
  fabric_->release_gone();
  ++call_;
  presence_->enter(call_);
  entered_at_ = moved_at_ = Clock::now();
}

void Communicator::leave() {
  check_alive();
  flush();
  presence_->leave(call_);
}

void Communicator::send(Rank peer, Message message) {
  message.call = call_;
  post(peer, message);
}

Ticket Communicator::put(Rank peer, std::span<const RemoteRun> runs, Message riding) {
  riding.call = call_;
  count(riding);
  return reach([&] { return link(peer).put(runs, riding); });
}

Ticket Communicator::get(Rank peer, std::span<const RemoteRun> runs) {
  return reach([&] { return link(peer).get(runs); });
}

template <class Act>
Ticket Communicator::reach(const Act& act) {
  try {
    return act();
  } catch (const TransportError&) {
    hear_reason();
    throw;
  }
}

void Communicator::count(const Message& message) {
  ++traffic_.messages;
  traffic_.bytes += kMessageBytes + static_cast<int64_t>(message.text.size());
}

void Communicator::post(Rank peer, const Message& message) {
  count(message);
  fabric_->link(peer).send(message);
}

/// Those that may need in this call what still waits here for them.
std::vector<Rank> Communicator::slow_peers() const {
  std::vector<Rank> slow;
  for (Rank peer = 0; peer < world_; ++peer)
    if (peer != rank_ && !fabric_->link(peer).sent_all() && !has_left(peer)) slow.push_back(peer);
  return slow;
}

/// Until nothing waits here for a peer of this call that is slow to take it.
void Communicator::flush() {
  moved_at_ = Clock::now();
  for (std::vector<Rank> slow = slow_peers(); !slow.empty(); slow = slow_peers()) {
    between();
    pump(milliseconds(1));
    check_lost({});
    check_silence(slow, "sending the last messages of a call, which it does not take");
  }
}

/// Takes and drops what arrives until all messages have gone, for at most `patience`.
void Communicator::poll_until_sent(milliseconds patience) {
  const auto until = Clock::now() + patience;
  bool sent = false;
  do {
    fresh_.clear();
    fabric_->poll(fresh_, std::chrono::microseconds(0));
    sent = true;
    for (Rank peer = 0; peer < world_; ++peer)
      sent = sent && (peer == rank_ || fabric_->link(peer).sent_all());
    if (!sent) std::this_thread::sleep_for(milliseconds(1));
  } while (!sent && Clock::now() < until);
}

bool Communicator::has_message() const {
  return std::any_of(inbox_.begin(), inbox_.end(),
                     [&](const Arrival& arrival) { return arrival.message.call == call_; });
}

void Communicator::drain(std::vector<Arrival>& arrivals) {
  check_alive();
  between();
  pump(std::chrono::microseconds(0));
  check_lost({});
  // A faster peer may already be in a later call: its messages stay here.
  const auto later = std::stable_partition(
      inbox_.begin(), inbox_.end(), [&](const Arrival& a) { return a.message.call <= call_; });
  for (auto arrival = inbox_.begin(); arrival != later; ++arrival)
    if (arrival->message.call == call_) arrivals.push_back(std::move(*arrival));
  inbox_.erase(inbox_.begin(), later);
}

void Communicator::wait(std::span<const Rank> peers_owing, const std::string& doing) {
  check_alive();
  wait_until([&] { return has_message(); }, peers_owing, doing, false);
}

void Communicator::wait_until(const std::function<bool()>& here, std::span<const Rank> peers_owing,
                              const std::string& doing, bool expects_blobs,
                              const std::function<void()>& sleep) {
  presence_->wait_for(peers_owing.empty() ? -1 : peers_owing.front());
  moved_at_ = Clock::now();  // while this rank was busy, the others may have waited for it
  while (!here()) {
    between();
    pump(sleep ? milliseconds(0) : kSlice);
    if (here()) break;
    check_same_call(peers_owing, expects_blobs);
    check_lost(peers_owing);
    check_silence(peers_owing, doing);
    if (sleep) sleep();
  }
  presence_->wait_for_nobody();
}

/// What a peer owes it says before it goes on. Others may be further on in the same call.
void Communicator::check_same_call(std::span<const Rank> peers_owing, bool expects_blobs) const {
  for (const Rank peer : peers_owing) {
    const auto is_of_peer = [&](const Arrival& arrival) {
      return arrival.peer == peer && arrival.kind == Arrival::Kind::kMessage &&
             arrival.message.call == call_;
    };
    const bool has_blob = !peers_[peer].blobs.empty() && peers_[peer].blobs.front().call == call_;
    if (expects_blobs ? std::ranges::any_of(inbox_, is_of_peer) : has_blob)
      throw_different_calls(peer);
  }
}

void Communicator::between() {
  if (cancelled_) {
    fail("the interpreter exits");
    check_alive();
  }
  const auto now = Clock::now();
  if (now - between_at_ < kSlice) return;
  between_at_ = now;
  try {
    options_.between();
  } catch (const std::exception& error) {
    // One line: what Python raised comes with the places that it went through.
    const std::string_view text = error.what();
    fail("interrupted while it waited: " + std::string(text.substr(0, text.find('\n'))));
    throw;
  }
}

void Communicator::pump(std::chrono::microseconds timeout) {
  fresh_.clear();
  fabric_->poll(fresh_, timeout);
  for (Arrival& arrival : fresh_) take(std::move(arrival));
}

void Communicator::take(Arrival&& arrival) {
  Peer& peer = peers_[arrival.peer];
  if (arrival.kind == Arrival::Kind::kLost) {
    peer.lost = arrival.reason.empty() ? "connection lost" : arrival.reason;
    return;
  }
  if (arrival.kind == Arrival::Kind::kDone) {
    arrival.message.call = call_;
    inbox_.push_back(std::move(arrival));
    return;
  }
  switch (arrival.message.kind) {
    case MessageKind::kBlob:
      return take_blob_part(arrival.peer, arrival.message);
    case MessageKind::kBye:
      peer.said_bye = true;
      return;
    case MessageKind::kFailed:
      die_of_peer(arrival.message.culprit, arrival.message.text);
    case MessageKind::kAddresses:
    case MessageKind::kReady:
    case MessageKind::kGranted:
    case MessageKind::kLanded:
    case MessageKind::kReleased:
      inbox_.push_back(std::move(arrival));
      return;
  }
  throw InternalError("unknown kind of message", str_cat(static_cast<int>(arrival.message.kind)),
                      "");
}

void Communicator::take_blob_part(Rank rank, const Message& message) {
  Peer& peer = peers_[rank];
  const TextPart& part = message.part;
  if (part.offset != peer.partial.size() ||
      part.total_bytes < peer.partial.size() + message.text.size())
    die_of_peer(rank, "it sent a part of a blob out of order");
  peer.partial += message.text;
  if (peer.partial.size() == part.total_bytes) {
    peer.blobs.push_back({std::move(peer.partial), message.call});
    peer.partial.clear();
  }
}

void Communicator::send_blob(Rank peer, const Blob& blob) {
  Message part;
  part.kind = MessageKind::kBlob;
  part.call = call_;
  part.part.total_bytes = blob.size();
  do {
    part.text = blob.substr(part.part.offset, kMaxTextBytes);
    post(peer, part);
    part.part.offset += part.text.size();
  } while (part.part.offset < blob.size());
}

Blob Communicator::receive_blob(Rank peer, const std::string& doing) {
  const Rank owing[] = {peer};
  wait_until([&] { return !peers_[peer].blobs.empty(); }, owing, doing, true);
  made_progress();
  Complete received = std::move(peers_[peer].blobs.front());
  peers_[peer].blobs.pop_front();
  if (received.call != call_) throw_different_calls(peer);
  return std::move(received.blob);
}

std::span<std::byte> Communicator::lane_entry() {
  check_alive();
  return small_->entry();
}

Entries Communicator::exchange(size_t num_bytes, const char* doing) {
  check_alive();
  return small_->exchange(num_bytes, doing);
}

}  // namespace hybridengine
