// Mailbox: how two ranks of one host say small things to each other without a system call.
//
// Each rank has a *page* for each peer, in memory that all peers map; it alone writes there: a ring
// of messages to the peer, and how many of the peer's it has taken. A pair begins to use its pages
// once both have reserved theirs and said so by socket, so only pairs that talk have any: 4 KiB a
// rank and peer. What is long, brings a descriptor or finds no room goes by socket; counts that
// travel with both keep the order.
//
// A rank that waits looks at its mailboxes for some microseconds, then sleeps at its sockets; it
// shows that it does, and is woken by a frame. Called by shm.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/host/frame.h"

namespace hybridengine {

struct MailPage {
  static constexpr uint64_t kSlots = 31;

  struct alignas(128) Slot {
    FrameHeader header;
  };

  alignas(128) std::atomic<uint64_t> written{0};  // messages so far
  std::atomic<uint64_t> taken{0};                 // of those on the peer's page
  Slot slots[kSlots];
};
static_assert(sizeof(MailPage) == 4096);

/// What a rank shows beside its board: odd while it sleeps at its sockets.
struct Doorbell {
  alignas(64) std::atomic<uint32_t> sleeps{0};
};

class Mailbox {
 public:
  /// Where the pages are; they are not touched before they are reserved.
  void locate(MailPage* own, const MailPage* theirs, const Doorbell* bell) {
    own_ = own;
    theirs_ = theirs;
    bell_ = bell;
  }
  MailPage* own_page() const { return own_; }

  bool said = false;   // to the peer that the own page is there
  bool heard = false;  // from it that its page is there
  bool open() const { return said && heard; }

  /// False where the ring is full.
  bool put(const FrameHeader& header);
  /// Whether the peer sleeps and has not been told of mail since it fell asleep.
  bool must_wake();

  /// Whether something is there.
  bool has_mail() const { return theirs_->written.load(std::memory_order_seq_cst) != taken_; }
  /// A copy of the oldest. Only where there is one.
  FrameHeader next() const { return theirs_->slots[taken_ % MailPage::kSlots].header; }
  void take();

  uint64_t num_put() const { return written_; }
  uint64_t num_taken() const { return taken_; }

 private:
  MailPage* own_ = nullptr;
  const MailPage* theirs_ = nullptr;
  const Doorbell* bell_ = nullptr;
  uint64_t written_ = 0, taken_ = 0;
  uint32_t woken_ = 0;  // the sleep that it was told in
};

}  // namespace hybridengine
