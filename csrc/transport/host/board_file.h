// BoardFile: what a rank shows to the others of its host, as it lies in memory: its signs, its
// doorbell, its page, and a page of mail for each rank. Called by shm and cma.
#pragma once

#include "transport/endpoint.h"
#include "transport/host/mailbox.h"

namespace hybridengine {

struct BoardFile {
  Signs signs;
  // Where a process that may read this one finds `probe_value`; 0 where none may. Set before it
  // connects.
  uint64_t probe_address = 0;
  uint64_t probe_value = 0;
  Doorbell bell;
  alignas(64) std::byte page[kPageBytes];  // zeros: what a fresh file holds

  /// Pages of mail follow, reserved one by one when they are first used.
  static constexpr size_t mail_at(size_t rank);
  static constexpr size_t bytes(size_t world);
};

constexpr size_t BoardFile::mail_at(size_t rank) {
  return (sizeof(BoardFile) + 4095) / 4096 * 4096 + rank * sizeof(MailPage);
}
constexpr size_t BoardFile::bytes(size_t world) { return mail_at(world); }

}  // namespace hybridengine
