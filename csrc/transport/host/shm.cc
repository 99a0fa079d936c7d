#include "transport/host/shm.h"

#include <algorithm>
#include <limits>
#include <new>
#include <span>
#include <utility>

#include "base/error.h"
#include "transport/checks.h"
#include "transport/host/shm_connect.h"
#include "transport/registry.h"

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

std::string why_closed(const ShmLink& link) {
  const bool died = !link.said_bye && link.process().ended(kDeathPatience);
  return str_cat("process ", link.process().pid(), died ? " died" : " closed the connection");
}

}  // namespace

ShmEndpoint::ShmEndpoint(const char* name, const Caps& caps, Rank rank, int32_t world,
                         const std::string& group)
    : rank_(rank), world_(world), group_(group) {
  check_place(rank, world);
  if (group.size() > kMaxTextBytes)
    throw UsageError("the name of a group is too long", str_cat(group.size(), " bytes"),
                     str_cat("Use at most ", kMaxTextBytes, "."));
  side_.name = name;
  side_.caps = &caps;
  side_.board = make_sealed_memory_partly("board", BoardFile::bytes(world), sizeof(BoardFile));
  new (side_.board.memory.data()) BoardFile;
  listener_ = listen_unguessable();
}

ShmEndpoint::~ShmEndpoint() {
  // In a child the connections are the parent's; only copies close here.
  if (!side_.guard.same_process()) return;
  for (const auto& link : links_) {
    if (!link || !link->connected()) continue;
    try {
      link->flush();
    } catch (const Error&) {
      // The peer learns of the end from the closed socket.
    }
    // Says so to the peer even where a forked child still holds a copy of the socket.
    ::shutdown(link->socket().get(), SHUT_RDWR);
  }
}

Blob ShmEndpoint::address() {
  side_.guard.check(name());
  return encode(own_shm_address(listener_.name));
}

std::string ShmEndpoint::why_not(Rank peer, const Blob& address) const {
  return what_sets_apart(own_shm_address(listener_.name), decode_shm_address(address, peer));
}

void ShmEndpoint::connect(std::span<const Blob> addresses, Clock::time_point deadline,
                          const std::function<void()>& between) {
  side_.guard.check(name());
  check_addresses(addresses, world_);
  if (!listener_.fd) throw_already_connected();
  std::vector<ShmConnection> made(world_);
  std::vector<ShmAddress> decoded(world_);
  for (Rank peer = 0; peer < world_; ++peer) {
    if (peer == rank_ || addresses[peer].empty()) continue;
    decoded[peer] = decode_shm_address(addresses[peer], peer);
    made[peer].expected = true;
  }
  const Listener listener = std::move(listener_);  // closed at the end, whether or not all came
  const Handshake::Self self{rank_, group_, own_shm_address(listener.name), &listener.fd,
                             &side_.board.fd};
  Handshake(self, decoded, made).run(deadline, between);
  side_.epoll.open();
  links_.resize(world_);
  for (Rank peer = 0; peer < world_; ++peer) {
    if (!made[peer].expected) continue;
    side_.epoll.add(made[peer].socket.get(), ShmSide::socket_tag(peer));
    if (made[peer].process.fd() >= 0)
      side_.epoll.add(made[peer].process.fd(), ShmSide::process_tag(peer));
    links_[peer] = make_link(peer, std::move(made[peer]));
  }
  connected_.store(true, std::memory_order_release);
}

std::unique_ptr<ShmLink> ShmEndpoint::make_link(Rank peer, ShmConnection connection) {
  return std::make_unique<ShmLink>(side_, peer, rank_, std::move(connection));
}

Link& ShmEndpoint::link(Rank peer) {
  side_.guard.check(name());
  check_peer(peer, rank_, world_);
  if (links_.empty() || !links_[peer]) throw_not_connected(peer);
  return *links_[peer];
}

void ShmEndpoint::release_gone() {
  for (const auto& link : links_)
    if (link) link->release_gone();
}

void ShmEndpoint::poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) {
  side_.guard.check(name());
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

void ShmEndpoint::look_at_sockets(std::vector<Arrival>& arrivals) {
  handle_events(arrivals);
  flush_crowded();
  looked_at_ = Clock::now();
  take_mail(arrivals);  // also what came before something that the sockets brought
}

/// What waits because too many descriptors were under way.
void ShmEndpoint::flush_crowded() {
  for (auto rank = side_.crowded.begin(); rank != side_.crowded.end();) {
    const Rank next = *rank++;
    links_[next]->flush();  // may erase it
  }
}

void ShmEndpoint::handle_events(std::vector<Arrival>& arrivals) {
  epoll_event events[64];
  for (const epoll_event& event : std::span(events, side_.epoll.ready(events))) {
    ShmLink& link = *links_[static_cast<size_t>(event.data.u64 >> 1)];
    if (!link.connected()) continue;  // lost by an earlier event
    if (event.data.u64 == ShmSide::process_tag(link.rank())) {
      receive(link, std::numeric_limits<int>::max(), arrivals);
      take_mail_of(link, kAllMail, arrivals);
      if (link.connected()) lose(link, why_closed(link), arrivals);
      continue;
    }
    if (event.events & EPOLLOUT) link.flush();
    if (event.events & ~EPOLLOUT) receive(link, kMaxFrames, arrivals);
  }
}

void ShmEndpoint::receive(ShmLink& link, int limit, std::vector<Arrival>& arrivals) {
  for (int taken = 0; taken < limit && link.connected(); ++taken) {
    Received frame = receive_frame(link.socket());
    const auto sent_what = [&] {
      return str_cat("process ", link.process().pid(), " sent ", frame.reason);
    };
    if (frame.kind == Received::Kind::kNothing) return;
    if (frame.kind == Received::Kind::kFrame) take(link, frame, arrivals);
    if (frame.kind == Received::Kind::kClosed) {
      take_mail_of(link, kAllMail, arrivals);
      lose(link, why_closed(link), arrivals);
    }
    if (frame.kind == Received::Kind::kNonsense) lose(link, sent_what(), arrivals);
    if (frame.kind == Received::Kind::kNoDescriptor)
      lose(link, sent_what() + "; raise the limit on open files (ulimit -n)", arrivals);
  }
}

void ShmEndpoint::take(ShmLink& link, Received& frame, std::vector<Arrival>& arrivals) {
  take_mail_of(link, frame.after, arrivals);  // what was sent before
  ++link.frames_taken;
  if (frame.message.kind <= MessageKind::kBye)
    return deliver(link, std::move(frame.message), arrivals);
  std::string fault;
  if (frame.message.kind == kHello) fault = "a second hello";
  if (frame.message.kind == kMailbox && !std::exchange(link.mail.heard, true)) {
    side_.talking.push_back(link.rank());
    link.open_mailbox();
  }
  if (frame.message.kind == kRegion)
    if (const std::string bad = link.take_region(frame); !bad.empty())
      fault = str_cat("bad memory: ", bad);
  if (!fault.empty())
    lose(link, str_cat("process ", link.process().pid(), " sent ", fault), arrivals);
}

void ShmEndpoint::deliver(ShmLink& link, Message&& message, std::vector<Arrival>& arrivals) {
  link.said_bye |= message.kind == MessageKind::kBye;
  Arrival& arrival = arrivals.emplace_back();
  arrival.peer = link.rank();
  arrival.message = std::move(message);
}

void ShmEndpoint::lose(ShmLink& link, const std::string& reason, std::vector<Arrival>& arrivals) {
  link.close();
  Arrival& loss = arrivals.emplace_back();
  loss.kind = Arrival::Kind::kLost;
  loss.peer = link.rank();
  loss.reason = reason;
}

BoardFile* ShmEndpoint::board(Rank rank) {
  if (rank < 0 || rank >= world_ || !connected_.load(std::memory_order_acquire)) return nullptr;
  if (rank == rank_) return &side_.own();
  return links_[rank] ? &links_[rank]->board() : nullptr;
}

Signs* ShmEndpoint::signs(Rank rank) {
  BoardFile* const file = board(rank);
  return file == nullptr ? nullptr : &file->signs;
}

Span ShmEndpoint::page(Rank rank) {
  BoardFile* const file = board(rank);
  return file == nullptr ? Span{} : Span{file->page, kPageBytes};
}

extern const TransportEntry kShm;

constinit const TransportEntry kShm{
    .name = "shm",
    .family = "host",
    .summary = "processes of one host, through shared memory",
    .caps = {.maps = true, .processes = true},
    .probe =
        [] {
          std::string missing = sealed_memory_missing();
          if (missing.empty()) missing = host_identity_missing();
          return Probe{.available = missing.empty(), .reason = missing};
        },
    .make = [](Rank rank, int32_t world, const std::string& group) -> std::unique_ptr<Endpoint> {
      return std::make_unique<ShmEndpoint>(kShm.name, kShm.caps, rank, world, group);
    },
};

}  // namespace hybridengine
