#include "transport/host/shm_link.h"

#include <new>
#include <utility>

#include "base/error.h"
#include "transport/checks.h"

namespace hybridengine {

ShmLink::ShmLink(ShmSide& side, Rank rank, Rank own, ShmConnection connection)
    : side_(side), rank_(rank), connection_(std::move(connection)) {
  const auto mail_of = [](std::byte* board, Rank whose) {
    return reinterpret_cast<MailPage*>(board + BoardFile::mail_at(static_cast<size_t>(whose)));
  };
  mail.locate(mail_of(side_.board.memory.data(), rank), mail_of(connection_.board.data(), own),
              &board().bell);
}

void ShmLink::send(const Message& message) {
  side_.guard.check(side_.name);
  check_message(message);
  if (put_mail(message)) return;
  post(message, nullptr);
  open_mailbox();
}

/// Sends, or queues behind what is queued already. Drops what is meant for a lost peer: its loss is
/// or will be reported by poll().
void ShmLink::post(const Message& message, std::shared_ptr<const Fd> passed) {
  if (!connected()) return;
  ++frames_posted_;
  outbox_.push_back({message, std::move(passed), mail.num_put()});
  if (outbox_.size() == 1) flush();
}

void ShmLink::flush() {
  Sent sent = Sent::kDone;
  while (!outbox_.empty()) {
    const Outgoing& next = outbox_.front();
    sent = send_frame(socket(), next.message, next.after, next.passed.get());
    if (sent == Sent::kFull || sent == Sent::kCrowded) break;
    outbox_.pop_front();
  }
  if (sent == Sent::kCrowded)
    side_.crowded.insert(rank_);
  else
    side_.crowded.erase(rank_);
  const bool full = sent == Sent::kFull;
  if (std::exchange(waits_for_room_, full) != full)
    side_.epoll.want_writable(socket().get(), ShmSide::socket_tag(rank_), full);
}

void ShmLink::open_mailbox() {
  if (mail.said || !connected()) return;
  const size_t at = BoardFile::mail_at(static_cast<size_t>(rank_));
  if (!reserve_sealed_memory(side_.board, at, sizeof(MailPage))) return;
  new (mail.own_page()) MailPage;
  Message said;
  said.kind = kMailbox;
  post(said, nullptr);
  mail.said = true;
}

/// False where the message has to go by socket.
bool ShmLink::put_mail(const Message& message) {
  if (!connected() || !mail.open() || !outbox_.empty() || !message.text.empty()) return false;
  FrameHeader header = header_of(message);
  header.after = frames_posted_;
  if (!mail.put(header)) return false;
  Message wake;
  wake.kind = kWake;
  // A socket without room is readable for the peer, which wakes it too.
  if (mail.must_wake() && send_frame(socket(), wake, mail.num_put(), nullptr) == Sent::kDone)
    ++frames_posted_;
  return true;
}

bool ShmLink::offer(const RegionPtr& region) {
  side_.guard.check(side_.name);
  std::erase_if(offered_, [](const auto& entry) { return entry.second.expired(); });
  if (!offered_.try_emplace(region->id(), region).second) return false;
  Message message;
  message.kind = kRegion;
  message.place.region = region->id();
  message.num_bytes = region->span().bytes;
  post(message, std::shared_ptr<const Fd>(region, &region->file()));
  return true;
}

std::string ShmLink::take_region(const Received& frame) {
  const Message& message = frame.message;
  const std::string fault = sealed_memory_fault(frame.passed, message.num_bytes);
  if (!fault.empty()) return fault;
  try {
    regions_[message.place.region] = map_sealed_memory(frame.passed, message.num_bytes);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

Span ShmLink::map(uint64_t region) {
  side_.guard.check(side_.name);
  const auto found = regions_.find(region);
  if (found == regions_.end()) throw_not_offered(rank_, region);
  return span_before_mark(found->second);
}

void ShmLink::release_gone() {
  std::erase_if(regions_, [](const auto& entry) { return was_given_back(entry.second); });
}

Ticket ShmLink::put(std::span<const RemoteRun> runs, const Message& riding) {
  copy(runs, true);
  send(riding);
  return {};
}

Ticket ShmLink::get(std::span<const RemoteRun> runs) {
  copy(runs, false);
  return {};
}

/// All runs of one call lie in regions, or none does.
void ShmLink::copy(std::span<const RemoteRun> runs, bool writing) {
  side_.guard.check(side_.name);
  if (!runs.empty() && runs.front().remote.region == 0) return copy_ordinary(runs, writing);
  copy_mapped(runs, writing, [this](const RemoteRun& run) {
    return place_in(map(run.remote.region), run, rank_);
  });
}

void ShmLink::copy_ordinary(std::span<const RemoteRun>, bool) {
  throw InternalError("shm is asked for ordinary memory of a peer", str_cat("rank ", rank_), "");
}

void ShmLink::close() {
  side_.epoll.remove(socket().get());
  side_.epoll.remove(process().fd());
  connection_.socket.reset();
  connection_.process.forget();
  outbox_.clear();
  side_.crowded.erase(rank_);
  std::erase(side_.talking, rank_);
  regions_.clear();
}

}  // namespace hybridengine
