#include "transport/threads/in_process.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "transport/checks.h"
#include "transport/threads/directory.h"

namespace hybridengine {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void Mailbox::put(Arrival arrival) {
  {
    const std::lock_guard lock(mutex);
    arrivals.push_back(std::move(arrival));
  }
  wake.notify_one();
}

/// All regions of the process are known anyway; this only tells whether it was the first time.
bool InProcessLink::offer(const RegionPtr& region) {
  guard_.check(entry_.name);
  std::erase_if(offered_, [](const auto& entry) { return entry.second.expired(); });
  return offered_.try_emplace(region->id(), region).second;
}

Span InProcessLink::map(uint64_t id) {
  guard_.check(entry_.name);
  const RegionPtr region = Region::find(id);
  if (!region) throw_not_offered(peer_->rank, id);
  return region->span();
}

void InProcessLink::copy(std::span<const RemoteRun> runs, bool writing) {
  guard_.check(entry_.name);
  if (!entry_.caps.payload) return;
  copy_mapped(runs, writing, [this](const RemoteRun& run) {
    return run.remote.region == 0 ? reinterpret_cast<std::byte*>(run.remote.offset)
                                  : place_in(map(run.remote.region), run, peer_->rank);
  });
}

Ticket InProcessLink::put(std::span<const RemoteRun> runs, const Message& riding) {
  copy(runs, true);
  send(riding);
  return {};
}

Ticket InProcessLink::get(std::span<const RemoteRun> runs) {
  copy(runs, false);
  return {};
}

void InProcessLink::send(const Message& message) {
  guard_.check(entry_.name);
  check_message(message);
  Arrival arrival;
  arrival.peer = own_;
  arrival.message = message;
  peer_->put(std::move(arrival));
}

InProcessEndpoint::InProcessEndpoint(const TransportEntry& entry, Rank rank, int32_t world,
                                     const std::string& group)
    : entry_(entry), rank_(rank), world_(world) {
  check_place(rank, world);
  own_ = std::make_shared<Mailbox>(rank, world, group);
  if (entry.caps.page) own_->page = std::make_unique<Mailbox::Page>();
  id_ = Directory::instance().add(own_);
}

InProcessEndpoint::~InProcessEndpoint() {
  if (!guard_.same_process()) return;  // the peers are threads of the parent
  Directory& directory = Directory::instance();
  directory.remove(id_);
  {
    const std::lock_guard lock(directory.mutex);
    // Whoever is still connecting while this one is through gets kLost later, like everybody else.
    if (!connected_.load(std::memory_order_relaxed)) own_->state = Mailbox::State::kClosed;
  }
  directory.changed.notify_all();
  for (const auto& link : links_) {
    if (!link) continue;
    Arrival loss;
    loss.kind = Arrival::Kind::kLost;
    loss.peer = rank_;
    loss.reason = str_cat("rank ", rank_, " closed");
    link->peer().put(std::move(loss));
  }
}

Blob InProcessEndpoint::address() {
  guard_.check(name());
  return Directory::instance().address_of(id_);
}

std::string InProcessEndpoint::why_not(Rank peer, const Blob& address) const {
  return Directory::instance().is_here(address, peer) ? "" : "it is in another process";
}

void InProcessEndpoint::connect(std::span<const Blob> addresses, Clock::time_point deadline,
                                const std::function<void()>& between) {
  guard_.check(name());
  check_addresses(addresses, world_);
  if (!links_.empty()) throw_already_connected();
  const auto began = Clock::now();
  Directory& directory = Directory::instance();
  std::vector<std::unique_ptr<InProcessLink>> links(addresses.size());
  std::unique_lock lock(directory.mutex);
  for (Rank peer = 0; peer < world_; ++peer) {
    if (peer != rank_ && !addresses[peer].empty())
      links[peer] =
          std::make_unique<InProcessLink>(entry_, guard_, rank_, find(peer, addresses[peer]));
  }
  links_ = std::move(links);
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
std::shared_ptr<Mailbox> InProcessEndpoint::find(Rank rank, const Blob& address) const {
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
std::vector<Rank> InProcessEndpoint::absent_peers() const {
  std::vector<Rank> absent;
  for (const auto& link : links_) {
    if (!link) continue;
    const Mailbox& peer = link->peer();
    if (peer.state == Mailbox::State::kClosed)
      throw TransportError(str_cat("rank ", peer.rank, " is gone"),
                           "it closed while others were connecting", "See its log.");
    if (peer.state == Mailbox::State::kMade) absent.push_back(peer.rank);
  }
  return absent;
}

Link& InProcessEndpoint::link(Rank peer) {
  guard_.check(name());
  check_peer(peer, rank_, world_);
  if (links_.empty() || !links_[peer]) throw_not_connected(peer);
  return *links_[peer];
}

void InProcessEndpoint::poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) {
  guard_.check(name());
  if (!connected_.load(std::memory_order_relaxed)) throw_not_connected(rank_);
  std::unique_lock lock(own_->mutex);
  const auto patience = std::min<std::chrono::microseconds>(timeout, std::chrono::hours(1));
  own_->wake.wait_for(lock, patience, [&] { return !own_->arrivals.empty(); });
  std::move(own_->arrivals.begin(), own_->arrivals.end(), std::back_inserter(arrivals));
  own_->arrivals.clear();
}

Mailbox* InProcessEndpoint::mailbox(Rank rank) const {
  if (rank < 0 || rank >= world_ || !connected_.load(std::memory_order_acquire)) return nullptr;
  if (rank == rank_) return own_.get();
  return links_[rank] ? &links_[rank]->peer() : nullptr;
}

Signs* InProcessEndpoint::signs(Rank rank) {
  Mailbox* const of_rank = mailbox(rank);
  return of_rank == nullptr ? nullptr : &of_rank->signs;
}

Span InProcessEndpoint::page(Rank rank) {
  Mailbox* const of_rank = mailbox(rank);
  if (of_rank == nullptr || !of_rank->page) return {};
  return {of_rank->page->bytes, kPageBytes};
}

}  // namespace hybridengine
