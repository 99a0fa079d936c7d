#include "transport/host/shm.h"

#include <algorithm>
#include <limits>
#include <new>
#include <span>

#include "base/error.h"
#include "transport/checks.h"
#include "transport/host/shm_connect.h"

namespace hybridengine {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

// Messages of one peer taken per poll(): a fast sender must not keep the others from being heard.
constexpr int kMaxFrames = 256;
// A killed process closes its sockets a little before it counts as ended.
constexpr milliseconds kDeathPatience{100};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "a board lives in shared memory");

uint64_t socket_tag(Rank rank) { return static_cast<uint64_t>(rank) << 1; }
uint64_t process_tag(Rank rank) { return socket_tag(rank) | 1; }

}  // namespace

ShmTransport::ShmTransport(Rank rank, int32_t world, const std::string& group)
    : rank_(rank), world_(world), group_(group) {
  check_place(rank, world);
  if (group.size() > kMaxTextBytes)
    throw UsageError("the name of a group is too long", str_cat(group.size(), " bytes"),
                     str_cat("Use at most ", kMaxTextBytes, "."));
  listener_ = listen_unguessable();
  board_ = make_sealed_memory("board", sizeof(Board));
  new (board_.memory.data()) Board;
}

ShmTransport::~ShmTransport() {
  if (!guard_.same_process()) return;  // the connections are the parent's; only copies close here
  for (Rank rank = 0; rank < static_cast<Rank>(peers_.size()); ++rank) {
    if (!peers_[rank].socket) continue;
    try {
      flush(rank);
    } catch (const Error&) {
      // The peer learns of the end from the closed socket.
    }
    // Says so to the peer even where a forked child still holds a copy of the socket.
    ::shutdown(peers_[rank].socket.get(), SHUT_RDWR);
  }
}

Blob ShmTransport::address() {
  guard_.check(name());
  return encode(own_shm_address(listener_.name));
}

void ShmTransport::connect(std::span<const Blob> addresses, Clock::time_point deadline,
                           const std::function<void()>& between) {
  guard_.check(name());
  check_addresses(addresses, world_);
  if (!listener_.fd) throw_already_connected();
  std::vector<ShmPeer> peers(world_);
  std::vector<ShmAddress> decoded(world_);
  for (Rank rank = 0; rank < world_; ++rank) {
    if (rank == rank_ || addresses[rank].empty()) continue;
    decoded[rank] = decode_shm_address(addresses[rank], rank);
    peers[rank].expected = true;
  }
  const Listener listener = std::move(listener_);  // closed at the end, whether or not all came
  const Handshake::Self self{rank_, group_, own_shm_address(listener.name), &listener.fd,
                             &board_.fd};
  Handshake(self, decoded, peers).run(deadline, between);
  peers_ = std::move(peers);
  finish_connect();
}

void ShmTransport::finish_connect() {
  epoll_.open();
  board_.fd.reset();
  const auto staging = std::make_shared<const Fd>(std::move(staging_.fd));
  for (Rank rank = 0; rank < world_; ++rank) {
    if (!peers_[rank].socket) continue;
    epoll_.add(peers_[rank].socket.get(), socket_tag(rank));
    if (peers_[rank].process.fd() >= 0) epoll_.add(peers_[rank].process.fd(), process_tag(rank));
    if (*staging) post_staging(rank, staging);
  }
  connected_.store(true, std::memory_order_release);
}

ShmPeer& ShmTransport::peer_of(Rank peer) {
  guard_.check(name());
  check_peer(peer, rank_, world_);
  if (!connected_.load(std::memory_order_relaxed) || !peers_[peer].expected)
    throw_not_connected(peer);
  return peers_[peer];
}

Span ShmTransport::staging(size_t bytes) {
  guard_.check(name());
  if (bytes <= staging_.memory.bytes()) return staging_.memory.span();
  staging_ = make_sealed_memory("staging", bytes);
  if (connected_.load(std::memory_order_relaxed)) {
    const auto memory = std::make_shared<const Fd>(std::move(staging_.fd));
    for (Rank rank = 0; rank < world_; ++rank) {
      if (peers_[rank].socket) post_staging(rank, memory);
    }
  }
  return staging_.memory.span();
}

void ShmTransport::post_staging(Rank rank, const std::shared_ptr<const Fd>& memory) {
  post(rank, {kStaging, 0, 0, 0, staging_.memory.bytes(), 0, {}}, memory);
}

Span ShmTransport::window(Rank rank, size_t bytes) {
  ShmPeer& peer = peer_of(rank);
  if (peer.staged_bytes < bytes) throw_small_window(rank, bytes, peer.staged_bytes);
  if (peer.staged) {
    peer.window = Mapping::shared(peer.staged, peer.staged_bytes, Mapping::Access::kReadWrite);
    peer.staged.reset();
  }
  return peer.window.span();
}

void ShmTransport::send(Rank peer, const Message& message) {
  peer_of(peer);
  check_message(message);
  post(peer, message, nullptr);
}

/// Sends, or queues behind what is queued already. Drops what is meant for a lost peer: its loss is
/// or will be reported by poll().
void ShmTransport::post(Rank rank, const Message& message, std::shared_ptr<const Fd> passed) {
  ShmPeer& peer = peers_[rank];
  if (!peer.socket) return;
  if (peer.outbox.empty()) {
    if (send_frame(peer.socket, message, passed.get()) != Sent::kFull) return;
    epoll_.want_writable(peer.socket.get(), socket_tag(rank), true);
  }
  peer.outbox.push_back({message, std::move(passed)});
}

void ShmTransport::flush(Rank rank) {
  ShmPeer& peer = peers_[rank];
  if (peer.outbox.empty()) return;
  while (!peer.outbox.empty()) {
    const ShmPeer::Outgoing& next = peer.outbox.front();
    if (send_frame(peer.socket, next.message, next.passed.get()) == Sent::kFull) return;
    peer.outbox.pop_front();
  }
  epoll_.want_writable(peer.socket.get(), socket_tag(rank), false);
}

bool ShmTransport::sent_all(Rank peer) const {
  return peers_.empty() || peers_[peer].outbox.empty();
}

void ShmTransport::poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) {
  guard_.check(name());
  if (!connected_.load(std::memory_order_relaxed)) throw_not_connected(rank_);
  const size_t before = arrivals.size();
  const auto until =
      Clock::now() + std::min<std::chrono::microseconds>(timeout, std::chrono::hours(1));
  for (;;) {
    handle_events(arrivals);
    const auto left = until - Clock::now();
    if (arrivals.size() > before || left <= Clock::duration::zero()) return;
    epoll_.wait(left);
  }
}

void ShmTransport::handle_events(std::vector<Arrival>& arrivals) {
  epoll_event events[64];
  for (const epoll_event& event : std::span(events, epoll_.ready(events))) {
    const auto rank = static_cast<Rank>(event.data.u64 >> 1);
    ShmPeer& peer = peers_[rank];
    if (!peer.socket) continue;  // lost by an earlier event
    if (event.data.u64 == process_tag(rank)) {
      receive(rank, std::numeric_limits<int>::max(), arrivals);
      if (peer.socket) lose(rank, why_closed(peer), arrivals);
      continue;
    }
    if (event.events & EPOLLOUT) flush(rank);
    if (event.events & ~EPOLLOUT) receive(rank, kMaxFrames, arrivals);
  }
}

void ShmTransport::receive(Rank rank, int limit, std::vector<Arrival>& arrivals) {
  ShmPeer& peer = peers_[rank];
  for (int taken = 0; taken < limit && peer.socket; ++taken) {
    Received frame = receive_frame(peer.socket);
    if (frame.kind == Received::Kind::kNothing) return;
    if (frame.kind == Received::Kind::kFrame) take(rank, frame, arrivals);
    if (frame.kind == Received::Kind::kClosed) lose(rank, why_closed(peer), arrivals);
    if (frame.kind == Received::Kind::kNonsense)
      lose(rank, str_cat("process ", peer.process.pid(), " sent ", frame.reason), arrivals);
  }
}

void ShmTransport::take(Rank rank, Received& frame, std::vector<Arrival>& arrivals) {
  ShmPeer& peer = peers_[rank];
  if (frame.message.kind == kHello)
    return lose(rank, str_cat("process ", peer.process.pid(), " sent a second hello"), arrivals);
  if (frame.message.kind <= MessageKind::kBye) {
    peer.said_bye |= frame.message.kind == MessageKind::kBye;
    arrivals.emplace_back().peer = rank;
    arrivals.back().message = std::move(frame.message);
    return;
  }
  const std::string fault = take_memory(peer, frame);
  if (!fault.empty())
    lose(rank, str_cat("process ", peer.process.pid(), " sent bad memory: ", fault), arrivals);
}

std::string ShmTransport::why_closed(const ShmPeer& peer) const {
  const bool died = !peer.said_bye && peer.process.ended(kDeathPatience);
  return str_cat("process ", peer.process.pid(), died ? " died" : " closed the connection");
}

void ShmTransport::lose(Rank rank, const std::string& reason, std::vector<Arrival>& arrivals) {
  ShmPeer& peer = peers_[rank];
  epoll_.remove(peer.socket.get());
  epoll_.remove(peer.process.fd());
  peer.socket.reset();
  peer.process.forget();
  peer.outbox.clear();
  Arrival& loss = arrivals.emplace_back();
  loss.kind = Arrival::Kind::kLost;
  loss.peer = rank;
  loss.reason = reason;
}

Board* ShmTransport::board(Rank rank) {
  if (rank < 0 || rank >= world_ || !connected_.load(std::memory_order_acquire)) return nullptr;
  const Mapping& memory = rank == rank_ ? board_.memory : peers_[rank].board;
  return reinterpret_cast<Board*>(memory.data());
}

extern const TransportEntry kShm;

constinit const TransportEntry kShm{
    .name = "shm",
    .summary = "processes of one host, through shared memory",
    .caps = {.window = true, .direct = true, .processes = true},
    .probe =
        [] {
          std::string missing = sealed_memory_missing();
          if (missing.empty()) missing = host_identity_missing();
          return Probe{.available = missing.empty(), .reason = missing};
        },
    .make = [](Rank rank, int32_t world, const std::string& group) -> std::unique_ptr<Transport> {
      return std::make_unique<ShmTransport>(rank, world, group);
    },
};

const char* ShmTransport::name() const { return kShm.name; }
const Caps& ShmTransport::caps() const { return kShm.caps; }

}  // namespace hybridengine
