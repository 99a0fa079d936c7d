// The part of shm that concerns mailboxes: see mailbox.h.
#include <algorithm>
#include <new>
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

/// Reserves the own page and says so. Where there is no room the pair keeps to its sockets.
void ShmTransport::open_mailbox(Rank rank) {
  ShmPeer& peer = peers_[rank];
  if (peer.mail.said || !peer.socket) return;
  if (!reserve_sealed_memory(board_, BoardFile::page_at(rank), sizeof(MailPage))) return;
  new (peer.mail.own_page()) MailPage;
  Message said;
  said.kind = kMailbox;
  post(rank, said, nullptr);
  peer.mail.said = true;
}

/// False where the message has to go by socket.
bool ShmTransport::put_mail(Rank rank, const Message& message) {
  ShmPeer& peer = peers_[rank];
  if (!peer.socket || !peer.mail.open() || !peer.outbox.empty() || !message.text.empty())
    return false;
  FrameHeader header = header_of(message);
  header.after = peer.frames_posted;
  if (!peer.mail.put(header)) return false;
  Message wake;
  wake.kind = kWake;
  // A socket without room is readable for the peer, which wakes it too.
  if (peer.mail.must_wake() &&
      send_frame(peer.socket, wake, peer.mail.num_put(), nullptr) == Sent::kDone)
    ++peer.frames_posted;
  return true;
}

void ShmTransport::take_mail(std::vector<Arrival>& arrivals) {
  for (size_t index = 0; index < talking_.size(); ++index) {
    const Rank rank = talking_[index];
    take_mail_of(rank, peers_[rank].mail.num_taken() + kMaxMail, arrivals);
    if (index < talking_.size() && talking_[index] != rank) --index;  // it was lost
  }
}

/// Until `limit` messages of the peer have been taken in all, or the next one comes after a frame
/// that is not here yet.
void ShmTransport::take_mail_of(Rank rank, uint64_t limit, std::vector<Arrival>& arrivals) {
  ShmPeer& peer = peers_[rank];
  while (peer.mail.heard && peer.socket && peer.mail.num_taken() < limit && peer.mail.has_mail()) {
    const FrameHeader header = peer.mail.next();
    if (header.after > peer.frames_taken) return;
    peer.mail.take();
    if (header.kind > static_cast<uint32_t>(MessageKind::kBye) || header.text_bytes != 0)
      return lose(rank, str_cat("process ", peer.process.pid(), " wrote nonsense into its mailbox"),
                  arrivals);
    deliver(rank, message_of(header, ""), arrivals);
  }
}

/// Whether take_mail() would find something.
bool ShmTransport::mail_is_here() const {
  return std::ranges::any_of(talking_, [&](Rank rank) {
    const ShmPeer& peer = peers_[rank];
    return peer.mail.has_mail() && peer.mail.next().after <= peer.frames_taken;
  });
}

bool ShmTransport::look_for_mail(std::chrono::nanoseconds patience) const {
  if (talking_.empty()) return false;
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
void ShmTransport::sleep(std::chrono::nanoseconds patience) {
  if (!crowded_.empty()) patience = std::min<std::chrono::nanoseconds>(patience, kCrowdedPatience);
  std::atomic<uint32_t>& sleeps = own_board().bell.sleeps;
  sleeps.fetch_add(1, std::memory_order_seq_cst);
  if (!mail_is_here()) epoll_.wait(patience);
  sleeps.fetch_add(1, std::memory_order_seq_cst);
}

}  // namespace hybridengine
