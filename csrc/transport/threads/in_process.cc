#include "transport/threads/in_process.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/error.h"
#include "transport/checks.h"
#include "transport/threads/directory.h"

namespace hybridengine {
namespace {

using Clock = std::chrono::steady_clock;

void put(Mailbox& mailbox, Arrival arrival) {
  {
    const std::lock_guard lock(mailbox.mutex);
    mailbox.arrivals.push_back(std::move(arrival));
  }
  mailbox.wake.notify_one();
}

}  // namespace

InProcessTransport::InProcessTransport(const TransportEntry& entry, Rank rank, int32_t world,
                                       const std::string& group)
    : entry_(entry), rank_(rank), world_(world) {
  check_place(rank, world);
  own_ = std::make_shared<Mailbox>(rank, world, group);
  id_ = Directory::instance().add(own_);
}

InProcessTransport::~InProcessTransport() {
  if (!guard_.same_process()) return;  // the peers are threads of the parent
  Directory& directory = Directory::instance();
  directory.remove(id_);
  {
    const std::lock_guard lock(directory.mutex);
    // Whoever is still connecting while this one is through gets kLost later, like everybody else.
    if (!connected_.load(std::memory_order_relaxed)) own_->state = Mailbox::State::kClosed;
  }
  directory.changed.notify_all();
  for (const auto& peer : peers_) {
    if (peer) put(*peer, {Arrival::Kind::kLost, rank_, {}, str_cat("rank ", rank_, " closed")});
  }
}

Blob InProcessTransport::address() {
  guard_.check(name());
  return Directory::instance().address_of(id_);
}

void InProcessTransport::connect(std::span<const Blob> addresses, Clock::time_point deadline,
                                 const std::function<void()>& between) {
  guard_.check(name());
  check_addresses(addresses, world_);
  if (!peers_.empty()) throw_already_connected();
  const auto began = Clock::now();
  Directory& directory = Directory::instance();
  std::vector<std::shared_ptr<Mailbox>> found(addresses.size());
  std::unique_lock lock(directory.mutex);
  for (Rank rank = 0; rank < world_; ++rank) {
    if (rank != rank_ && !addresses[rank].empty()) found[rank] = find(rank, addresses[rank]);
  }
  peers_ = std::move(found);
  own_->state = Mailbox::State::kConnecting;
  directory.changed.notify_all();
  for (std::vector<Rank> absent; !(absent = absent_peers()).empty();) {
    if (Clock::now() >= deadline)
      throw_missing(name(), absent, std::chrono::duration<double>(Clock::now() - began).count());
    directory.changed.wait_until(lock,
                                 std::min(deadline, Clock::now() + std::chrono::milliseconds(100)));
    lock.unlock();
    between();
    lock.lock();
  }
  connected_.store(true, std::memory_order_release);
}

/// The mailbox of `rank`, which must be of the same world. The directory is locked.
std::shared_ptr<Mailbox> InProcessTransport::find(Rank rank, const Blob& address) const {
  auto mailbox = Directory::instance().find(address, rank);
  if (!mailbox)
    throw TransportError(str_cat("rank ", rank, " is gone"), "it closed before it was connected",
                         "See its log.");
  if (mailbox->rank != rank || mailbox->world != world_ || mailbox->group != own_->group)
    throw TransportError(
        str_cat("the address of rank ", rank, " belongs to another world"),
        str_cat("rank ", mailbox->rank, " of ", mailbox->world, " in group '", mailbox->group,
                "', wanted rank ", rank, " of ", world_, " in group '", own_->group, "'"),
        "Pass the addresses of one group, in order of ranks.");
  return mailbox;
}

/// The peers that have not called connect() yet. The directory is locked.
std::vector<Rank> InProcessTransport::absent_peers() const {
  std::vector<Rank> absent;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    if (peer->state == Mailbox::State::kClosed)
      throw TransportError(str_cat("rank ", peer->rank, " is gone"),
                           "it closed while others were connecting", "See its log.");
    if (peer->state == Mailbox::State::kMade) absent.push_back(peer->rank);
  }
  return absent;
}

Mailbox& InProcessTransport::peer_of(Rank peer) const {
  guard_.check(name());
  check_peer(peer, rank_, world_);
  if (!connected_.load(std::memory_order_relaxed) || !peers_[peer]) throw_not_connected(peer);
  return *peers_[peer];
}

/// All regions of the process are known anyway; this only tells whether it was the first time.
bool InProcessTransport::offer(Rank peer, const RegionPtr& region) {
  peer_of(peer);
  std::erase_if(offered_, [](const auto& entry) { return entry.second.expired(); });
  return offered_.try_emplace({peer, region->id()}, region).second;
}

void InProcessTransport::send(Rank peer, const Message& message) {
  Mailbox& mailbox = peer_of(peer);
  check_message(message);
  put(mailbox, {Arrival::Kind::kMessage, rank_, message, {}});
}

void InProcessTransport::poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) {
  guard_.check(name());
  if (!connected_.load(std::memory_order_relaxed)) throw_not_connected(rank_);
  std::unique_lock lock(own_->mutex);
  const auto patience = std::min<std::chrono::microseconds>(timeout, std::chrono::hours(1));
  own_->wake.wait_for(lock, patience, [&] { return !own_->arrivals.empty(); });
  std::move(own_->arrivals.begin(), own_->arrivals.end(), std::back_inserter(arrivals));
  own_->arrivals.clear();
}

Span InProcessTransport::map(Rank peer, uint64_t id) {
  peer_of(peer);
  const RegionPtr region = Region::find(id);
  if (!region)
    throw TransportError("a peer grants memory that is gone",
                         str_cat("rank ", peer, ", region ", id), "");
  return region->span();
}

void InProcessTransport::read(Rank, std::span<const RemoteRun> runs) {
  for (const RemoteRun& run : runs)
    std::memcpy(run.local, reinterpret_cast<const void*>(run.address), run.bytes);
}

void InProcessTransport::write(Rank, std::span<const RemoteRun> runs) {
  for (const RemoteRun& run : runs)
    std::memcpy(reinterpret_cast<void*>(run.address), run.local, run.bytes);
}

Board* InProcessTransport::board(Rank rank) {
  if (rank < 0 || rank >= world_ || !connected_.load(std::memory_order_acquire)) return nullptr;
  if (rank == rank_) return &own_->board;
  return peers_[rank] ? &peers_[rank]->board : nullptr;
}

}  // namespace hybridengine
