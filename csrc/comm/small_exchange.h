// SmallExchange: every rank shows all others something small, and sees what each of them shows.
//
// Two ways, which give the same. *Lanes*: each rank writes into a page that all others have mapped;
// a microsecond, no message, and each rank reads n places. A *tree* of messages, where there is no
// such page: rank r has the parent (r - 1) / kFanOut, entries go up to rank 0 and the table of all
// goes down. At most kFanOut + 1 messages each way for a rank (more where a table is longer than a
// message), depth log n, and n entries pass each rank, kFanOut times where it has children.
//
// Called by Communicator, which waits, watches peers and keeps deadlines for both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/blob.h"
#include "base/rank.h"

namespace hybridengine {

class Communicator;

/// Entries by rank, valid until the next exchange.
using Entries = std::span<const std::span<const std::byte>>;

class SmallExchange {
 public:
  virtual ~SmallExchange() = default;

  /// Where this rank's next entry is put together; its size is the most that one may have.
  virtual std::span<std::byte> entry() = 0;
  /// Shows the first `num_bytes` of it. `doing` is for errors, and tells what is exchanged: ranks
  /// that exchange different things throw TransportError. Throws as Communicator::wait does.
  virtual Entries exchange(size_t num_bytes, const char* doing) = 0;
};

/// Over the pages of all ranks (lane.h).
std::unique_ptr<SmallExchange> make_lanes(Communicator& comm);
std::unique_ptr<SmallExchange> make_tree(Communicator& comm);

/// The tree, which also carries what is not small (gather.cc).
struct TreePlace {
  static constexpr int32_t kFanOut = 4;

  TreePlace(Rank rank, int32_t world);
  /// Whether what `rank` sends up comes by way of this one's child `child`, or from it.
  static bool is_below(Rank rank, Rank child);

  Rank parent = -1;  // of rank 0: none
  std::vector<Rank> children;
};

}  // namespace hybridengine
