// paper: threads of one process that pass each other notes. A medium as one adds it from outside:
// this file, and the build option
// HYBRIDENGINE_EXTRA_TRANSPORT=kPaper=python_tests/paper_transport.cc, which puts it into the
// registry.
//
// It can do the least that a medium may: nothing is mapped, no memory is within reach, there is no
// page, and a put only happens, and its message only leaves, when its rank polls. So it shows that
// whoever uses a link waits for tickets. For tests.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "base/error.h"
#include "transport/checks.h"
#include "transport/fork_guard.h"
#include "transport/registry.h"

namespace hybridengine {

extern const TransportEntry kPaper;

namespace {

using Clock = std::chrono::steady_clock;

/// What a rank shows, by the address that it gives. All of a process lie in one table.
struct Desk {
  Signs signs;
  std::deque<Arrival> notes;
  bool open = true;  // its rank has not closed it
  bool connecting = false;
};

struct Office {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<Blob, std::shared_ptr<Desk>> desks;
};

Office& office() {
  static auto& one = *new Office;
  return one;
}

struct Pending {
  Rank peer = 0;
  Desk* desk = nullptr;
  uint64_t ticket = 0;  // 0: of a mere message
  std::vector<RemoteRun> runs;
  Message riding;
};

/// What is written and not posted yet, in order.
class OutTray {
 public:
  explicit OutTray(Rank own) : own_(own) {}

  /// A message without a put before it leaves at once.
  void add(Pending pending) {
    const bool at_once = pending_.empty() && pending.ticket == 0;
    pending_.push_back(std::move(pending));
    if (at_once) post(nullptr);
  }
  uint64_t next_ticket() { return ++last_ticket_; }
  bool holds(Rank peer) const {
    return std::ranges::any_of(pending_, [&](auto& each) { return each.peer == peer; });
  }

  /// Writes and says what is pending; `arrivals` hear of the puts.
  void post(std::vector<Arrival>* arrivals) {
    for (; !pending_.empty(); pending_.pop_front()) {
      const Pending& next = pending_.front();
      for (const RemoteRun& run : next.runs)
        if (const RegionPtr region = Region::find(run.remote.region))
          std::memcpy(place_in(region->span(), run, next.peer), run.local, run.bytes);
      {
        const std::lock_guard lock(office().mutex);
        Arrival& note = next.desk->notes.emplace_back();
        note.peer = own_;
        note.message = next.riding;
        office().changed.notify_all();
      }
      if (next.ticket == 0 || arrivals == nullptr) continue;
      Arrival& done = arrivals->emplace_back();
      done.kind = Arrival::Kind::kDone;
      done.peer = next.peer;
      done.ticket = next.ticket;
    }
  }

 private:
  Rank own_;
  std::deque<Pending> pending_;
  uint64_t last_ticket_ = 0;
};

class PaperLink : public Link {
 public:
  PaperLink(OutTray& tray, Rank peer, std::shared_ptr<Desk> desk)
      : tray_(tray), peer_(peer), desk_(std::move(desk)) {}

  const Caps& caps() const override { return kPaper.caps; }
  bool reaches() override { return false; }
  bool offer(const RegionPtr& region) override {
    std::erase_if(offered_, [](const auto& each) { return each.second.expired(); });
    return offered_.try_emplace(region->id(), region).second;
  }
  Span map(uint64_t region) override { throw_not_offered(peer_, region); }
  Ticket put(std::span<const RemoteRun> runs, const Message& riding) override {
    check_message(riding);
    const uint64_t ticket = tray_.next_ticket();
    tray_.add({peer_, desk_.get(), ticket, {runs.begin(), runs.end()}, riding});
    return {ticket};
  }
  Ticket get(std::span<const RemoteRun>) override {
    throw InternalError("paper is asked for ordinary memory of a peer", str_cat(peer_), "");
  }
  void send(const Message& message) override {
    check_message(message);
    tray_.add({peer_, desk_.get(), 0, {}, message});
  }
  bool sent_all() const override { return !tray_.holds(peer_); }

  Desk& desk() const { return *desk_; }

 private:
  OutTray& tray_;
  Rank peer_;
  std::shared_ptr<Desk> desk_;
  std::map<uint64_t, std::weak_ptr<Region>> offered_;
};

class PaperEndpoint : public Endpoint {
 public:
  PaperEndpoint(Rank rank, int32_t world, std::string group)
      : rank_(rank), world_(world), group_(std::move(group)) {
    check_place(rank, world);
    const std::lock_guard lock(office().mutex);
    static uint64_t number = 0;
    address_ = str_cat("paper ", ++number, " ", rank_, " ", world_, " '", group_, "'");
    office().desks[address_] = own_;
  }
  ~PaperEndpoint() override {
    if (!guard_.same_process()) return;
    tray_.post(nullptr);
    const std::lock_guard lock(office().mutex);
    office().desks.erase(address_);
    own_->open = false;
    for (const auto& link : links_) {
      if (!link) continue;
      Arrival& loss = link->desk().notes.emplace_back();
      loss.kind = Arrival::Kind::kLost;
      loss.peer = rank_;
      loss.reason = str_cat("rank ", rank_, " closed");
    }
    office().changed.notify_all();
  }

  const char* name() const override { return kPaper.name; }
  const Caps& caps() const override { return kPaper.caps; }
  Blob address() override {
    guard_.check(name());
    return address_;
  }
  std::string why_not(Rank, const Blob& address) const override {
    const std::lock_guard lock(office().mutex);
    return office().desks.contains(address) ? "" : "it is in another process";
  }

  void connect(std::span<const Blob> addresses, Clock::time_point deadline,
               const std::function<void()>& between) override {
    guard_.check(name());
    check_addresses(addresses, world_);
    if (!links_.empty()) throw_already_connected();
    std::unique_lock lock(office().mutex);
    links_.resize(world_);
    for (Rank peer = 0; peer < world_; ++peer) {
      if (peer == rank_ || addresses[peer].empty()) continue;
      const auto found = office().desks.find(addresses[peer]);
      check_address(peer, addresses[peer], found != office().desks.end());
      links_[peer] = std::make_unique<PaperLink>(tray_, peer, found->second);
    }
    own_->connecting = true;
    office().changed.notify_all();
    wait_for_peers(lock, deadline, between);
    connected_ = true;
  }

  Link& link(Rank peer) override {
    guard_.check(name());
    check_peer(peer, rank_, world_);
    if (links_.empty() || !links_[peer]) throw_not_connected(peer);
    return *links_[peer];
  }
  void release_gone() override {}

  void poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) override {
    guard_.check(name());
    if (!connected_) throw_not_connected(rank_);
    const size_t before = arrivals.size();
    tray_.post(&arrivals);
    std::unique_lock lock(office().mutex);
    const auto patience = std::min<std::chrono::microseconds>(timeout, std::chrono::hours(1));
    if (arrivals.size() == before)
      office().changed.wait_for(lock, patience, [&] { return !own_->notes.empty(); });
    for (Arrival& note : own_->notes) arrivals.push_back(std::move(note));
    own_->notes.clear();
  }

  Signs* signs(Rank rank) override {
    if (rank < 0 || rank >= world_ || !connected_) return nullptr;
    if (rank == rank_) return &own_->signs;
    return links_[rank] ? &links_[rank]->desk().signs : nullptr;
  }
  Span page(Rank) override { return {}; }

 private:
  void check_address(Rank peer, const Blob& address, bool found) const {
    if (!address.starts_with("paper "))
      throw UsageError(str_cat("the address of rank ", peer, " is none of paper"), "", "");
    if (!found)
      throw TransportError(str_cat("rank ", peer, " is gone"), "it closed before", "See its log.");
    if (!address.ends_with(str_cat(" ", peer, " ", world_, " '", group_, "'")))
      throw TransportError(str_cat("the address of rank ", peer, " belongs to another world"),
                           str_cat("it is ", address, ", wanted rank ", peer, " of '", group_, "'"),
                           "Pass the addresses of one group, in order of ranks.");
  }

  void wait_for_peers(std::unique_lock<std::mutex>& lock, Clock::time_point deadline,
                      const std::function<void()>& between) {
    const auto began = Clock::now();
    for (;;) {
      std::vector<Rank> absent;
      for (Rank peer = 0; peer < world_; ++peer) {
        if (!links_[peer] || links_[peer]->desk().connecting) continue;
        if (!links_[peer]->desk().open)
          throw TransportError(str_cat("rank ", peer, " is gone"), "it closed", "See its log.");
        absent.push_back(peer);
      }
      if (absent.empty()) return;
      if (Clock::now() >= deadline)
        throw_missing(name(), absent, std::chrono::duration<double>(Clock::now() - began).count());
      office().changed.wait_for(lock, std::chrono::milliseconds(50));
      lock.unlock();
      between();
      lock.lock();
    }
  }

  ForkGuard guard_;
  Rank rank_;
  int32_t world_;
  std::string group_;
  Blob address_;
  std::shared_ptr<Desk> own_ = std::make_shared<Desk>();
  OutTray tray_{rank_};
  std::vector<std::unique_ptr<PaperLink>> links_;
  std::atomic<bool> connected_ = false;
};

}  // namespace

constinit const TransportEntry kPaper{
    .name = "paper",
    .family = "paper",
    .summary = "threads of one process, by notes; for tests",
    .caps = {.page = false},
    .probe = [] { return Probe{.available = true, .reason = ""}; },
    .make = [](Rank rank, int32_t world, const std::string& group) -> std::unique_ptr<Endpoint> {
      return std::make_unique<PaperEndpoint>(rank, world, group);
    },
};

}  // namespace hybridengine
