#include "comm/communicator.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"

namespace hybridengine {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kHeartbeat{100};
constexpr milliseconds kSlice{50};  // of a wait: bounds the delay of Ctrl-C

/// How long a farewell may take when a peer does not read.
constexpr milliseconds kFarewell{500};

int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

}  // namespace

Communicator::Communicator(std::unique_ptr<Transport> transport, Rank rank, int32_t world,
                           CommOptions options)
    : transport_(std::move(transport)),
      rank_(rank),
      world_(world),
      options_(std::move(options)),
      peers_(world) {}

Communicator::~Communicator() {
  {
    const std::lock_guard lock(watchdog_mutex_);
    watchdog_stop_ = true;
  }
  watchdog_wake_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  if (!dead()) {
    Message bye;
    bye.kind = MessageKind::kBye;
    try {
      for (Rank peer = 0; peer < world_; ++peer)
        if (peer != rank_ && peers_[peer].lost.empty()) transport_->send(peer, bye);
      const auto deadline = Clock::now() + kFarewell;
      do transport_->poll(fresh_, std::chrono::milliseconds(transport_->sent_all() ? 0 : 10));
      while (!transport_->sent_all() && Clock::now() < deadline);
    } catch (const std::exception&) {
      // A peer that is gone needs no farewell; there is nobody left to tell.
    }
  }
}

void Communicator::connect(std::span<const Blob> addresses) {
  if (static_cast<int32_t>(addresses.size()) != world_)
    throw UsageError("a communicator needs one address per rank",
                     str_cat(addresses.size(), " addresses, ", world_, " ranks"), "");
  transport_->connect(addresses, Clock::now() + options_.timeout, options_.between);
  transport_->board(rank_)->heartbeat_ns = now_ns();
  connected_at_ = entered_at_ = moved_at_ = Clock::now();
  watchdog_ = std::thread([this] { heartbeat(); });
  log(LogLevel::kInfo, Subsystem::kComm, "rank ", rank_, " of ", world_, " is connected (",
      transport_->name(), ")");
}

void Communicator::heartbeat() {
  Board* board = transport_->board(rank_);
  std::unique_lock lock(watchdog_mutex_);
  while (!watchdog_stop_) {
    board->heartbeat_ns = now_ns();
    watchdog_wake_.wait_for(lock, kHeartbeat);
  }
}

void Communicator::check_alive() const {
  if (dead())
    throw TransportError("this communicator is dead", death_, "Make a new one on every rank.");
}

void Communicator::enter() {
  check_alive();
  ++call_;
  transport_->board(rank_)->call = 2 * call_ - 1;
  entered_at_ = moved_at_ = Clock::now();
}

void Communicator::leave() {
  flush();
  transport_->board(rank_)->waiting_for = -1;
  transport_->board(rank_)->call = 2 * call_;
}

void Communicator::flush() {
  while (!transport_->sent_all()) {
    between();
    pump(kSlice);
    check_lost({});
    check_silence({}, "taking messages");
  }
}

void Communicator::made_progress() {
  transport_->board(rank_)->progress.fetch_add(1, std::memory_order_relaxed);
}

void Communicator::send(Rank peer, Message message) {
  message.call = call_;
  transport_->send(peer, message);
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
  Board* board = transport_->board(rank_);
  board->waiting_for = peers_owing.empty() ? -1 : peers_owing.front();
  while (!has_message()) {
    between();
    pump(kSlice);
    if (has_message()) break;
    check_lost(peers_owing);
    check_silence(peers_owing, doing);
  }
  board->waiting_for = -1;
}

void Communicator::between() {
  const auto now = Clock::now();
  if (now - between_at_ < kSlice) return;
  between_at_ = now;
  try {
    options_.between();
  } catch (...) {
    fail("interrupted while it waited");
    throw;
  }
}

void Communicator::pump(std::chrono::microseconds timeout) {
  fresh_.clear();
  transport_->poll(fresh_, timeout);
  for (Arrival& arrival : fresh_) take(std::move(arrival));
}

void Communicator::take(Arrival&& arrival) {
  Peer& peer = peers_[arrival.peer];
  if (arrival.kind == Arrival::Kind::kLost) {
    peer.lost = arrival.reason.empty() ? "connection lost" : arrival.reason;
    return;
  }
  switch (arrival.message.kind) {
    case MessageKind::kBlob:
      return take_blob_part(arrival.peer, arrival.message);
    case MessageKind::kBye:
      peer.said_bye = true;
      return;
    case MessageKind::kFailed:
      die_of_peer(static_cast<Rank>(arrival.message.value), arrival.message.text);
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
  if (message.offset != peer.partial.size() ||
      message.value < peer.partial.size() + message.text.size())
    die_of_peer(rank, "it sent a part of a blob out of order");
  peer.partial += message.text;
  if (peer.partial.size() == message.value) {
    peer.blobs.push_back(std::move(peer.partial));
    peer.partial.clear();
  }
}

void Communicator::send_blob(Rank peer, const Blob& blob) {
  Message part;
  part.kind = MessageKind::kBlob;
  part.value = blob.size();
  do {
    part.text = blob.substr(part.offset, kMaxTextBytes);
    transport_->send(peer, part);
    part.offset += part.text.size();
  } while (part.offset < blob.size());
  flush();
}

Blob Communicator::receive_blob(Rank peer) {
  const Rank owing[] = {peer};
  while (peers_[peer].blobs.empty()) {
    between();
    transport_->board(rank_)->waiting_for = peer;
    pump(kSlice);
    if (!peers_[peer].blobs.empty()) break;
    check_lost(owing);
    check_silence(owing, "agreeing with the other ranks");
  }
  transport_->board(rank_)->waiting_for = -1;
  made_progress();
  return take_blob(peer);
}

Blob Communicator::take_blob(Rank peer) {
  if (peers_[peer].blobs.empty()) die_of_peer(peer, "it did not send what it announced");
  Blob blob = std::move(peers_[peer].blobs.front());
  peers_[peer].blobs.pop_front();
  return blob;
}

std::vector<Blob> Communicator::all_gather(const Blob& mine) {
  check_alive();
  std::vector<Blob> all(world_);
  all[rank_] = mine;
  if (rank_ != 0) {
    send_blob(0, mine);
    const Blob packed = receive_blob(0);
    BlobReader reader(packed);
    for (Blob& blob : all) blob = reader.get_text();
    return all;
  }
  for (Rank peer = 1; peer < world_; ++peer) all[peer] = receive_blob(peer);
  BlobWriter writer;
  for (const Blob& blob : all) writer.put_text(blob);
  const Blob packed = std::move(writer).take();
  for (Rank peer = 1; peer < world_; ++peer) send_blob(peer, packed);
  return all;
}

}  // namespace hybridengine
