// RunBlock: short runs of this process's memory, gathered side by side in a block that stays in its
// cache, where they are one run at the other end.
//
// The kernel copies the entries of a system call one by one and waits for the memory of each; a
// loop of this process fetches those that come next. So two copies take less time than one.
//
// What it is not: the one who reaches the peer's memory. Called by cma.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "transport/link.h"

namespace hybridengine {

class RunBlock {
 public:
  /// How many of the first runs should go by the block, as many as it has room for: short ones that
  /// touch at the peer. 0 where they are too few to pay.
  static size_t fitting(std::span<const RemoteRun> runs);

  /// What fitting() found, as one run of the block and the peer's memory. Valid until the next
  /// call.
  RemoteRun as_one(std::span<const RemoteRun> runs);
  /// Between the block and the runs that it was made of.
  void gather(std::span<const RemoteRun> runs);
  void scatter(std::span<const RemoteRun> runs) const;

 private:
  std::unique_ptr<std::byte[]> block_;  // once one is needed
};

}  // namespace hybridengine
