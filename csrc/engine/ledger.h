// Ledger: how far each tensor of this rank is in a run, and the events that tell the caller.
//
// Of a destination tensor it counts the bytes that are still to come, from others and from this
// rank's own tensors; of a source tensor those that are still to be read. A stream opens its
// destination tensors one by one and hands them over in that order.
//
// What it is not: aware of messages, slots or addresses. Called by Run.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "engine/routine.h"

namespace hybridengine {

/// Why Run::advance() came back.
struct Event {
  enum class Kind : uint8_t {
    kDone,      // all of this rank's part is through
    kNeed,      // provide() the memory of destination tensor `local`, then advance again
    kFinished,  // destination tensor `local`, provided before, is complete
    kReleased,  // source tensor `local` may change: all that reads it is through
  };
  Kind kind = Kind::kDone;
  int32_t local = -1;  // among this rank's source or destination tensors, in layout order
};

class Ledger {
 public:
  /// `aliased` destination tensors are views of source tensors: nothing is copied into them, and
  /// those are never released.
  Ledger(const Program& program, const RunOptions& options, std::span<const int32_t> aliased);

  /// What the caller is to be told first: a source that is released, a target that is finished.
  std::optional<Event> next_event();

  // A part has landed in its targets; a part, or a contribution of this rank, has been read.
  void landed(const Part& part);
  void was_read(const Part& part);

  // Copies within this rank, target by target.

  bool any_local_copies() const { return next_local_ < local_limit(); }
  /// The next one, where there are any.
  const Copy& next_local_copy();
  void copied(const Copy& copy);

  // Streaming only.

  /// Asks for the next target up to `target`; none where all of them are open.
  std::optional<Event> open_up_to(int32_t target);
  /// Whether as much is open as the caller wants, and `target` is not.
  bool is_full_for(int32_t target) const;

 private:
  struct Target {
    bool aliased = false;
    int64_t missing_bytes = 0;
  };

  bool streaming() const { return options_.open_bytes > 0; }
  /// One past the last target whose local copies may be made.
  size_t local_limit() const;
  void skip_targets_without_copies();
  void count_unread();
  void was_read(const Copy& copy);
  Target& target_of(const Copy& copy);
  bool is_of_source(const Copy& copy) const;

  const Program& program_;
  const RunOptions& options_;
  std::vector<Target> targets_;
  std::vector<int64_t> unread_bytes_;  // by source; empty unless releases are asked for
  std::deque<Event> released_;
  int32_t next_open_ = 0, next_hand_over_ = 0;
  int64_t open_bytes_ = 0;
  size_t next_local_ = 0, next_copy_ = 0;
};

}  // namespace hybridengine
