#include "transport/fabric.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "transport/checks.h"

namespace hybridengine {
namespace {

// With several media each is waited for in turn, so this much may be lost where another one brings
// something.
constexpr std::chrono::microseconds kTurn{200};

constexpr std::string_view kMagic = "HEfabric";
constexpr uint32_t kVersion = 1;

using Addresses = std::vector<std::pair<std::string, Blob>>;

/// What is in an address: families in order of preference, each with its endpoint's own address.
Addresses decode(const Blob& address) {
  BlobReader reader(address, kMagic, kVersion);
  const auto count = reader.get<uint32_t>();
  reader.check_count(count, 2 * sizeof(uint64_t));
  Addresses entries(count);
  for (auto& [family, blob] : entries) {
    family = reader.get_text();
    blob = reader.get_bytes();
  }
  reader.finish();
  return entries;
}

Addresses decode_of(Rank rank, const Blob& address) {
  try {
    return decode(address);
  } catch (const UsageError& error) {
    throw UsageError(str_cat("the address of rank ", rank, " is none"), error.what(),
                     "Pass what address() of that rank returned.");
  }
}

}  // namespace

Fabric::Fabric(std::vector<Member> members, Rank rank, int32_t world)
    : rank_(rank), world_(world), members_(std::move(members)), choices_(world) {
  ensure(!members_.empty(), "a fabric without a medium");
  for (const Member& each : members_)
    name_ += str_cat(name_.empty() ? "" : ",", each.endpoint->name());
  settle();
}

Blob Fabric::address() const {
  BlobWriter writer(kMagic, kVersion);
  writer.put(static_cast<uint32_t>(members_.size()));
  for (const Member& each : members_) {
    writer.put_text(each.family);
    writer.put_bytes(each.endpoint->address());
  }
  return std::move(writer).finish();
}

void Fabric::connect(std::span<const Blob> addresses,
                     std::chrono::steady_clock::time_point deadline,
                     const std::function<void()>& between) {
  check_addresses(addresses, world_);
  std::vector<std::vector<Blob>> by_member(members_.size(), std::vector<Blob>(world_));
  for (Rank peer = 0; peer < world_; ++peer) {
    if (peer == rank_ || addresses[peer].empty()) continue;
    std::vector<std::string> order;
    Offer theirs;
    for (auto& [family, blob] : decode_of(peer, addresses[peer])) {
      order.push_back(family);
      theirs.emplace(std::move(family), std::move(blob));
    }
    choices_[peer] = choose(peer, order, theirs);
    const auto member = static_cast<size_t>(choices_[peer].member);
    by_member[member][peer] = std::move(theirs.find(members_[member].family)->second);
  }
  for (size_t member = 0; member < members_.size(); ++member)
    members_[member].endpoint->connect(by_member[member], deadline, between);
  settle();
}

/// The first medium of the lower rank's order that both have and that reaches. The only one that
/// both have is taken as it is: its connect() says best what is wrong.
Fabric::Choice Fabric::choose(Rank peer, const std::vector<std::string>& order,
                              const Offer& theirs) const {
  std::vector<int32_t> common;
  for (int32_t member = 0; member < static_cast<int32_t>(members_.size()); ++member)
    if (theirs.contains(members_[member].family)) common.push_back(member);
  if (peer < rank_)
    std::ranges::sort(common, {}, [&](int32_t member) {
      return std::ranges::find(order, members_[member].family) - order.begin();
    });
  if (common.size() == 1) return {common.front(), ""};
  std::string reasons;
  for (const int32_t member : common) {
    const Endpoint& endpoint = *members_[member].endpoint;
    const std::string reason = endpoint.why_not(peer, theirs.find(members_[member].family)->second);
    if (reason.empty()) return {member, reasons};
    reasons += str_cat(reasons.empty() ? "" : "; ", endpoint.name(), ": ", reason);
  }
  if (common.empty())
    throw UsageError(str_cat("rank ", peer, " has none of the transports of this rank"), name_,
                     "Set the same HYBRIDENGINE_TRANSPORT on all ranks.");
  throw TransportError(str_cat("rank ", peer, " cannot be reached"), reasons,
                       "Mend one of these, or set HYBRIDENGINE_TRANSPORT on all ranks.");
}

/// What follows from who serves whom; as long as nobody does, from all media.
void Fabric::settle() {
  std::set<int32_t> used;
  for (Rank peer = 0; peer < world_; ++peer)
    if (peer != rank_ && choices_[peer].member >= 0) used.insert(choices_[peer].member);
  for (int32_t member = 0; used.empty() && member < static_cast<int32_t>(members_.size());)
    used.insert(member++);
  choices_[rank_].member = *used.begin();
  caps_ = {.maps = true, .processes = true};
  used_.clear();
  for (const int32_t member : used) {
    used_.push_back(members_[member].endpoint.get());
    const Caps& caps = used_.back()->caps();
    caps_.maps &= caps.maps;
    caps_.pull |= caps.pull;
    caps_.processes &= caps.processes;
    caps_.payload &= caps.payload;
    caps_.page &= caps.page && used.size() == 1;
  }
}

Endpoint& Fabric::chosen(Rank peer) const {
  check_place(peer, world_);
  if (choices_[peer].member < 0) throw_not_connected(peer);
  return *members_[choices_[peer].member].endpoint;
}

Link& Fabric::link(Rank peer) const { return chosen(peer).link(peer); }
const char* Fabric::medium(Rank peer) const { return chosen(peer).name(); }

const std::string& Fabric::why_not_better(Rank peer) const {
  check_place(peer, world_);
  return choices_[peer].reasons;
}

RegionPtr Fabric::staging(size_t bytes, const std::function<void()>& between) {
  return grown(staging_, "staging", bytes, between);
}

RegionPtr Fabric::send_staging(size_t bytes, const std::function<void()>& between) {
  return grown(send_staging_, "staging to send from", bytes, between);
}

RegionPtr Fabric::grown(RegionPtr& kept, const char* purpose, size_t bytes,
                        const std::function<void()>& between) const {
  if (!caps_.payload || bytes == 0) return nullptr;
  if (!kept || kept->span().bytes < bytes) kept = Region::make(purpose, bytes, between);
  return kept;
}

void Fabric::release_gone() {
  for (Endpoint* each : used_) each->release_gone();
}

void Fabric::poll(std::vector<Arrival>& arrivals, std::chrono::microseconds timeout) {
  using Clock = std::chrono::steady_clock;
  if (used_.size() == 1) return used_.front()->poll(arrivals, timeout);
  const size_t before = arrivals.size();
  const auto until =
      Clock::now() + std::min<std::chrono::microseconds>(timeout, std::chrono::hours(1));
  for (Endpoint* each : used_) each->poll(arrivals, std::chrono::microseconds(0));
  while (arrivals.size() == before && Clock::now() < until)
    for (Endpoint* each : used_) each->poll(arrivals, kTurn);
}

std::vector<Signs*> Fabric::own_signs() const {
  std::vector<Signs*> all;
  for (Endpoint* each : used_) all.push_back(each->signs(rank_));
  return all;
}

Span Fabric::page(Rank rank) const { return caps_.page ? chosen(rank).page(rank) : Span{}; }

}  // namespace hybridengine
