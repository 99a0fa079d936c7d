// Collectives: all_reduce, reduce_scatter, all_gather, broadcast and barrier on lists of tensors.
//
// Each is a plan: all_reduce goes from a partial layout, in which every rank contributes all
// elements, to one in which every rank has them; reduce_scatter and all_gather are its two steps.
// Where all peers' memory is mapped all_reduce is faster in rounds (all_reduce.h). What fits into a
// lane (comm/lane.h) travels there instead: combined in the same order, so the result has the
// same bits.
#pragma once

#include <cstdint>
#include <list>
#include <memory>

#include "collective/request.h"
#include "engine/routine.h"

namespace hybridengine {

class Collectives {
 public:
  /// `auto_bucket_bytes`: where a request leaves the choice; rank 0's counts.
  Collectives(Communicator& comm, int64_t auto_bucket_bytes)
      : comm_(comm), auto_bucket_bytes_(auto_bucket_bytes) {}

  /// All ranks call it alike. Where one rank's request has an error, or requests differ, all throw
  /// the same UsageError, no buffer has changed and the next call works. Whatever else goes wrong
  /// on one rank, a UsageError too, reaches all others at once, and throws as Communicator::wait
  /// does there; the communicator is then dead and outputs are undefined.
  void run(const Request& request);

 private:
  struct Prepared {  // for requests of one digest
    uint64_t digest = 0;
    bool flat = false;
    int64_t bucket_bytes = 0;
    std::unique_ptr<Routine> routine;
  };

  void perform(const Request& request, const Agreement& agreement);
  void run_small(const Request& request, const Agreement& agreement) const;
  void run_large(const Request& request, const Agreement& agreement);
  Prepared& prepared_for(const Request& request, const Agreement& agreement);

  Communicator& comm_;
  int64_t auto_bucket_bytes_;
  std::list<Prepared> prepared_;  // the latest first
};

}  // namespace hybridengine
