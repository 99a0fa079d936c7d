#include "transport/host/shm.h"

#include <algorithm>
#include <limits>
#include <new>
#include <span>
#include <utility>

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
// While mailboxes bring something, sockets are looked at this often: each look is a system call.
constexpr std::chrono::microseconds kSocketPatience{50};
// How long mailboxes are looked at before this rank sleeps at its sockets: some hops between ranks
// that run, far less than a time slice.
constexpr std::chrono::microseconds kMailPatience{30};

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
  board_ = make_sealed_memory_partly("board", BoardFile::bytes(world), sizeof(BoardFile));
  new (board_.memory.data()) BoardFile;
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
  for (Rank rank = 0; rank < world_; ++rank) {
    if (!peers_[rank].socket) continue;
    epoll_.add(peers_[rank].socket.get(), socket_tag(rank));
    auto* mine = reinterpret_cast<MailPage*>(board_.memory.data() + BoardFile::page_at(rank));
    const std::byte* theirs = peers_[rank].board.data();
    peers_[rank].mail.locate(mine,
                             reinterpret_cast<const MailPage*>(theirs + BoardFile::page_at(rank_)),
                             &reinterpret_cast<const BoardFile*>(theirs)->bell);
    if (peers_[rank].process.fd() >= 0) epoll_.add(peers_[rank].process.fd(), process_tag(rank));
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

void ShmTransport::send(Rank peer, const Message& message) {
  peer_of(peer);
  check_message(message);
  if (put_mail(peer, message)) return;
  post(peer, message, nullptr);
  open_mailbox(peer);
}

/// Sends, or queues behind what is queued already. Drops what is meant for a lost peer: its loss is
/// or will be reported by poll().
void ShmTransport::post(Rank rank, const Message& message, std::shared_ptr<const Fd> passed) {
  ShmPeer& peer = peers_[rank];
  if (!peer.socket) return;
  ++peer.frames_posted;
  peer.outbox.push_back({message, std::move(passed), peer.mail.num_put()});
  if (peer.outbox.size() == 1) flush(rank);
}

void ShmTransport::flush(Rank rank) {
  ShmPeer& peer = peers_[rank];
  Sent sent = Sent::kDone;
  while (!peer.outbox.empty()) {
    const ShmPeer::Outgoing& next = peer.outbox.front();
    sent = send_frame(peer.socket, next.message, next.after, next.passed.get());
    if (sent == Sent::kFull || sent == Sent::kCrowded) break;
    peer.outbox.pop_front();
  }
  if (sent == Sent::kCrowded)
    crowded_.insert(rank);
  else
    crowded_.erase(rank);
  const bool full = sent == Sent::kFull;
  if (std::exchange(peer.waits_for_room, full) != full)
    epoll_.want_writable(peer.socket.get(), socket_tag(rank), full);
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
  take_mail(arrivals);
  if (arrivals.size() > before && Clock::now() - looked_at_ < kSocketPatience) return;
  for (bool looked = false;; looked = true) {
    look_at_sockets(arrivals);
    const auto left = until - Clock::now();
    if (arrivals.size() > before || left <= Clock::duration::zero()) return;
    if (looked || !look_for_mail(std::min<Clock::duration>(left, kMailPatience))) sleep(left);
  }
}

void ShmTransport::look_at_sockets(std::vector<Arrival>& arrivals) {
  handle_events(arrivals);
  flush_crowded();
  looked_at_ = Clock::now();
  take_mail(arrivals);  // also what came before something that the sockets brought
}

/// What waits because too many descriptors were under way.
void ShmTransport::flush_crowded() {
  for (auto rank = crowded_.begin(); rank != crowded_.end();) {
    const Rank next = *rank++;
    flush(next);  // may erase it
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
      take_mail_of(rank, kAllMail, arrivals);
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
    if (frame.kind == Received::Kind::kClosed) {
      take_mail_of(rank, kAllMail, arrivals);
      lose(rank, why_closed(peer), arrivals);
    }
    if (frame.kind == Received::Kind::kNonsense)
      lose(rank, str_cat("process ", peer.process.pid(), " sent ", frame.reason), arrivals);
    if (frame.kind == Received::Kind::kNoDescriptor)
      lose(rank,
           str_cat("process ", peer.process.pid(), " sent ", frame.reason,
                   "; raise the limit on open files (ulimit -n)"),
           arrivals);
  }
}

void ShmTransport::take(Rank rank, Received& frame, std::vector<Arrival>& arrivals) {
  ShmPeer& peer = peers_[rank];
  take_mail_of(rank, frame.after, arrivals);  // what was sent before
  ++peer.frames_taken;
  if (frame.message.kind <= MessageKind::kBye)
    return deliver(rank, std::move(frame.message), arrivals);
  std::string fault;
  if (frame.message.kind == kHello) fault = "a second hello";
  if (frame.message.kind == kMailbox && !std::exchange(peer.mail.heard, true)) {
    talking_.push_back(rank);
    open_mailbox(rank);
  }
  if (frame.message.kind == kRegion)
    if (const std::string bad = take_region(peer, frame); !bad.empty())
      fault = str_cat("bad memory: ", bad);
  if (!fault.empty())
    lose(rank, str_cat("process ", peer.process.pid(), " sent ", fault), arrivals);
}

void ShmTransport::deliver(Rank rank, Message&& message, std::vector<Arrival>& arrivals) {
  peers_[rank].said_bye |= message.kind == MessageKind::kBye;
  arrivals.emplace_back().peer = rank;
  arrivals.back().message = std::move(message);
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
  crowded_.erase(rank);
  std::erase(talking_, rank);
  peer.regions.clear();
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
    .caps = {.maps = true, .processes = true},
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
