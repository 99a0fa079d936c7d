#include "transport/host/mailbox.h"

namespace hybridengine {

bool Mailbox::put(const FrameHeader& header) {
  if (written_ - theirs_->taken.load(std::memory_order_acquire) >= MailPage::kSlots) return false;
  own_->slots[written_ % MailPage::kSlots].header = header;
  // Sequentially consistent, as are the accesses to the doorbell: either the peer sees this message
  // when it looks for the last time before it sleeps, or this rank sees that it sleeps.
  own_->written.store(++written_, std::memory_order_seq_cst);
  return true;
}

bool Mailbox::must_wake() {
  const uint32_t sleeps = bell_->sleeps.load(std::memory_order_seq_cst);
  if (sleeps % 2 == 0 || sleeps == woken_) return false;
  woken_ = sleeps;
  return true;
}

void Mailbox::take() { own_->taken.store(++taken_, std::memory_order_release); }

}  // namespace hybridengine
