// BoardFile: what a rank shows to the others of its host, as it lies in memory: its board, its
// doorbell, and a page of mail for each rank. Called by shm.
#pragma once

#include "transport/host/mailbox.h"
#include "transport/transport.h"

namespace hybridengine {

struct BoardFile {
  Board board;
  Doorbell bell;

  /// The pages follow, reserved one by one when they are first used.
  static constexpr size_t kPagesAt = (sizeof(Board) + sizeof(Doorbell) + 4095) / 4096 * 4096;
  static constexpr size_t page_at(size_t rank) { return kPagesAt + rank * sizeof(MailPage); }
  static constexpr size_t bytes(size_t world) { return page_at(world); }
};
static_assert(sizeof(BoardFile) <= BoardFile::kPagesAt);

}  // namespace hybridengine
