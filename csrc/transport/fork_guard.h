// Tells an object whether it still lives in the process that made it.
//
// A forked child inherits sockets, mappings and locks that belong to its parent; using them there
// would mix two ranks into one. Held by each endpoint, which checks it in every method.
#pragma once

#include <cstdint>

namespace hybridengine {

class ForkGuard {
 public:
  ForkGuard();

  /// False in a child forked after this guard was made. Costs one load.
  bool same_process() const;
  /// Throws TransportError that names `transport` unless same_process().
  void check(const char* transport) const;

 private:
  uint64_t generation_;
};

}  // namespace hybridengine
