// The mailboxes of this process, by number. Process-wide, guarded by one lock. Called by
// in_process.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/blob.h"

namespace hybridengine {

struct Mailbox;

class Directory {
 public:
  /// The one of this process. Never destroyed: endpoints may outlive everything static.
  static Directory& instance();

  /// Enters `mailbox` and returns its number, which is never used again.
  uint64_t add(const std::shared_ptr<Mailbox>& mailbox);
  void remove(uint64_t id);

  /// What peers need to find mailbox `id`: valid in this process only.
  Blob address_of(uint64_t id) const;
  /// The mailbox behind an address; null when it is gone. Throws UsageError when `address` is none,
  /// and TransportError when it belongs to another process. `rank` is named in both.
  /// The caller holds `mutex`.
  std::shared_ptr<Mailbox> find(const Blob& address, int32_t rank) const;

  /// Whether an address is one of this process. Throws UsageError when it is none.
  bool is_here(const Blob& address, int32_t rank) const;

  /// Guards the states of all mailboxes; `changed` is notified after each change.
  std::mutex mutex;
  std::condition_variable changed;

 private:
  Directory();

  uint64_t nonce_ = 0;  // tells this process from all others
  uint64_t last_id_ = 0;
  std::unordered_map<uint64_t, std::weak_ptr<Mailbox>> mailboxes_;
};

}  // namespace hybridengine
