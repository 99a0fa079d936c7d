// How a communicator notices that something is wrong, and what it says.
//
// Three signs, from fast to slow: a lost connection (the process is dead), a failure that a peer
// tells us, and silence. Silence has three meanings: no heartbeat (the process is stopped or its
// host is gone), a living rank that has not entered the call (it may take long: a backward pass),
// and ranks that are all in the call while nobody makes progress.
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "comm/communicator.h"

namespace hybridengine {
namespace {

using Clock = std::chrono::steady_clock;

// A loaded machine may not let a heartbeat run for this long.
constexpr std::chrono::seconds kMinSilence{2};
// For the words of a failure to reach peers that are slow to take messages.
constexpr std::chrono::milliseconds kTellPatience{200};

/// At most kMaxTextBytes of it, without half a character at the end.
std::string shortened(const std::string& text) {
  size_t end = std::min(text.size(), kMaxTextBytes);
  while (end > 0 && end < text.size() && (text[end] & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

std::string seconds(std::chrono::nanoseconds duration) {
  std::ostringstream text;
  text.precision(1);
  text << std::fixed << std::chrono::duration<double>(duration).count() << " s";
  return text.str();
}

}  // namespace

void Communicator::check_lost(std::span<const Rank> peers_owing) {
  for (Rank peer = 0; peer < world_; ++peer) {
    if (peers_[peer].lost.empty()) continue;
    const bool owes = std::find(peers_owing.begin(), peers_owing.end(), peer) != peers_owing.end();
    if (owes || !has_left(peer))
      die_of_peer(peer, peers_[peer].said_bye ? "it closed its communicator" : peers_[peer].lost);
  }
}

void Communicator::check_silence(std::span<const Rank> peers_owing, const std::string& doing) {
  const auto now = Clock::now();
  presence_->look();
  uint64_t sum = 0;
  bool all_entered = true;
  for (Rank peer = 0; peer < world_; ++peer) {
    all_entered = all_entered && presence_->has_entered(peer, call_);
    if (has_left(peer)) continue;  // what it does in later calls is no progress of this one
    sum += presence_->moved(peer);
    if (peer == rank_) continue;
    const Clock::duration silent = now - presence_->last_seen(peer);
    if (silent > std::max<Clock::duration>(options_.timeout, kMinSilence))
      die_of_silence(peer, silent, "no heartbeat: its process is stopped or its host is gone",
                     doing);
  }
  if (sum != moved_sum_) {
    moved_sum_ = sum;
    moved_at_ = now;
  }
  if (!all_entered) {
    moved_at_ = now;
    if (now - entered_at_ <= options_.enter_timeout) return;
    for (Rank peer = 0; peer < world_; ++peer)
      if (!presence_->has_entered(peer, call_))
        die_of_silence(peer, now - entered_at_, "it lives but has not entered the call", doing);
  }
  if (now - moved_at_ > options_.timeout && !peers_owing.empty())
    die_of_silence(follow_waiting(peers_owing.front()), now - moved_at_,
                   "it is in the call but makes no progress", doing);
}

/// Who is at the end of the chain of waiting ranks: the one that holds up all others.
Rank Communicator::follow_waiting(Rank from) {
  for (int32_t steps = 0; steps < world_; ++steps) {
    const Rank next = presence_->waiting_for(from);
    if (next < 0 || next == rank_) break;
    from = next;
  }
  return from;
}

void Communicator::die_of_peer(Rank culprit, std::string reason) {
  tell_all(culprit, reason);
  throw TransportError(
      str_cat("rank ", culprit, " was lost"), str_cat(reason, " (seen by rank ", rank_, ")"),
      str_cat("See rank ", culprit, "'s log; make a new communicator on every rank."));
}

void Communicator::die_of_silence(Rank culprit, std::chrono::nanoseconds silent,
                                  const std::string& why, const std::string& doing) {
  const std::string what =
      str_cat("rank ", culprit, " did not answer rank ", rank_, " for ", seconds(silent));
  tell_all(culprit, str_cat("it did not answer rank ", rank_, " for ", seconds(silent), ", ", why));
  throw TimeoutError(
      what, str_cat(why, "; ", fabric_->name(), ", ", doing),
      str_cat("See rank ", culprit, "'s log; to wait longer set HYBRIDENGINE_TIMEOUT_S (",
              seconds(options_.timeout), ") or HYBRIDENGINE_ENTER_TIMEOUT_S (",
              seconds(options_.enter_timeout), ")."));
}

/// After a peer could not be reached: waits a moment for what it, or another one, says of the
/// reason, and throws that; returns where nobody says anything.
void Communicator::hear_reason() {
  const auto until = Clock::now() + kTellPatience;
  do {
    pump(std::chrono::milliseconds(10));
    check_lost({});
  } while (Clock::now() < until);
}

void Communicator::fail(const std::string& reason) noexcept {
  if (!dead()) tell_all(rank_, reason);
}

void Communicator::tell_all(Rank culprit, const std::string& reason) noexcept {
  const RankScope scope(rank_);
  try {
    death_ = culprit == rank_ ? reason : str_cat("rank ", culprit, " was lost: ", reason);
    log(LogLevel::kInfo, Subsystem::kComm, "the communicator is dead: ", death_);
    Message message;
    message.kind = MessageKind::kFailed;
    message.culprit = culprit;
    message.text = shortened(reason);
    for (Rank peer = 0; peer < world_; ++peer)
      if (peer != rank_ && peers_[peer].lost.empty()) fabric_->link(peer).send(message);
    poll_until_sent(kTellPatience);
  } catch (const std::exception&) {
    // The peers learn of it from the closed connection.
    if (death_.empty()) death_ = "failed";
  }
}

}  // namespace hybridengine
