// The fuser: fills buckets with parts of moves.
//
// Vocabulary: each step and ordered pair of ranks has at most one *open* bucket. A *stretch* is a
// part, in order, of what one destination rank receives or combines. All buckets are closed where a
// stretch ends, so none holds parts of two, and a stretch takes its *turns* (schedule/rounds.h)
// after all those of the stretch before. What feeds a gate, or waits for one, belongs to the gate's
// stretch: every stretch of this rank is one, and all its buckets take the same turn.
//
// What it is not: who says how much fits next, and where a stretch ends. Those are the routes, as
// in plan/route.h.
#pragma once

#include <compare>
#include <map>
#include <vector>

#include "layout/holders.h"
#include "schedule/rounds.h"
#include "schedule/schedule.h"

namespace hybridengine {

inline int64_t aligned(int64_t offset, int64_t elem_bytes) {
  return (offset + elem_bytes - 1) / elem_bytes * elem_bytes;
}

/// The buckets of one rank. A route may follow what other ranks receive too, where its own buckets
/// depend on that: those are counted and not kept.
class Fuser {
 public:
  Fuser(const Plan& plan, Rank rank, int64_t bucket_bytes);

  /// What follows is received or combined by `dst`: its first stretch begins.
  void begin_destination(Rank dst);
  void begin_stretch();

  /// The offset at which the move goes on in the open bucket of its pair. Opens another one where
  /// `elems` elements do not fit into it.
  int64_t make_room(const Move& move, int64_t elems);
  /// Puts a part of a move at an offset of its pair's open bucket, and opens one where there is
  /// none. `index` is that of this rank's move.
  void append(const Move& move, int32_t index, const Box& box, int64_t offset_bytes);
  /// Closes all buckets and gives them away.
  std::vector<Bucket> finish();

  /// Cuts a box in row-major order into what fits: `room()` is how many elements do next, at least
  /// 1, and `put(box)` takes no more than that.
  template <class Room, class Put>
  void cut(const Box& box, const Room& room, const Put& put) {
    todo_.assign(1, box);  // in reverse order
    while (!todo_.empty()) {
      const int64_t elems = room();
      if (todo_.back().num_elems() > elems) split_last(elems, todo_);
      // What was split off may come as several boxes; there is room again for each.
      put(todo_.back());
      todo_.pop_back();
    }
  }

 private:
  struct Pair {
    Rank src = 0;
    Rank dst = 0;
    uint8_t step = 0;
    auto operator<=>(const Pair& other) const = default;
  };
  struct Open {
    int64_t used_bytes = -1;  // -1: there is none
    int32_t turn = 0;
    int32_t bucket = -1;      // index into buckets_; -1: of others
    std::vector<Item> items;  // of the bucket, which takes just the room they need when it closes
  };

  Open& open_of(const Move& move);
  void open_bucket(const Move& move, Open& open);
  void close(Open& open);

  const Rank rank_;
  const Rounds rounds_;
  const int64_t bucket_bytes_;
  std::map<Pair, Open> open_;                    // of the stretch
  std::pair<const Pair, Open>* last_ = nullptr;  // of them: most moves follow one of their pair
  Rank dst_ = -1;
  int32_t first_turn_ = 0, next_turn_ = 0;  // of the stretch; of the one that follows
  int32_t gate_ = -1;
  std::vector<Box> todo_;
  std::vector<Bucket> buckets_;
};

/// The routes: the buckets of `rank`, whose moves `moves` are. Called by make_schedule.
std::vector<Bucket> fuse_copied(const Plan& plan, Rank rank, const Table<Move>& moves,
                                int64_t bucket_bytes, bool in_order);
std::vector<Bucket> fuse_combined(const Plan& plan, Rank rank, const Table<Move>& moves,
                                  int64_t bucket_bytes);

}  // namespace hybridengine
