// The part of shm that concerns mailboxes: see mailbox.h.
#include <algorithm>
#include <thread>

#include "base/error.h"
#include "transport/host/shm.h"

namespace hybridengine {
namespace {

using Clock = std::chrono::steady_clock;

// Between two tries to pass a descriptor while too many are under way: nothing tells of their end.
constexpr std::chrono::milliseconds kCrowdedPatience{1};
// A peer on another core answers within this; later the core is given away between two looks, for
// the peer may need it.
constexpr std::chrono::microseconds kKeepCore{5};
// Messages of one peer taken per poll(): a fast sender must not keep the others from being heard.
constexpr uint64_t kMaxMail = 256;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void ShmEndpoint::take_mail(std::vector<Arrival>& arrivals) {
  for (size_t index = 0; index < side_.talking.size(); ++index) {
    ShmLink& link = *links_[side_.talking[index]];
    take_mail_of(link, link.mail.num_taken() + kMaxMail, arrivals);
    if (!link.connected()) --index;  // it was lost, and talks no more
  }
}

/// Until `limit` messages of the peer have been taken in all, or the next one comes after a frame
/// that is not here yet.
void ShmEndpoint::take_mail_of(ShmLink& link, uint64_t limit, std::vector<Arrival>& arrivals) {
  Mailbox& mail = link.mail;
  while (mail.heard && link.connected() && mail.num_taken() < limit && mail.has_mail()) {
    const FrameHeader header = mail.next();
    if (header.after > link.frames_taken) return;
    mail.take();
    if (header.kind > static_cast<uint32_t>(MessageKind::kBye) || header.text_bytes != 0)
      return lose(link,
                  str_cat("process ", link.process().pid(), " wrote nonsense into its mailbox"),
                  arrivals);
    deliver(link, message_of(header, ""), arrivals);
  }
}

/// Whether take_mail() would find something.
bool ShmEndpoint::mail_is_here() const {
  return std::ranges::any_of(side_.talking, [&](Rank rank) {
    const ShmLink& link = *links_[rank];
    return link.mail.has_mail() && link.mail.next().after <= link.frames_taken;
  });
}

bool ShmEndpoint::look_for_mail(std::chrono::nanoseconds patience) const {
  if (side_.talking.empty()) return false;
  const auto start = Clock::now();
  for (auto now = start; now - start < patience; now = Clock::now()) {
    if (mail_is_here()) return true;
    if (now - start < kKeepCore)
      pause();
    else
      std::this_thread::yield();
  }
  return mail_is_here();
}

/// At the sockets, until one of them or a mailbox has something, or `patience` is over.
void ShmEndpoint::sleep(std::chrono::nanoseconds patience) {
  if (!side_.crowded.empty())
    patience = std::min<std::chrono::nanoseconds>(patience, kCrowdedPatience);
  std::atomic<uint32_t>& sleeps = side_.own().bell.sleeps;
  sleeps.fetch_add(1, std::memory_order_seq_cst);
  if (!mail_is_here()) side_.epoll.wait(patience);
  sleeps.fetch_add(1, std::memory_order_seq_cst);
}

}  // namespace hybridengine
