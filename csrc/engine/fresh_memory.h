// FreshMemory: regions for the results of one caller, lent one at a time and used again.
//
// A region is lent as a Lease. Whoever uses the memory holds the lease, and only the end of the
// lease makes the memory free: no count of references is ever looked at. Free memory is used again
// by the next lend(); what nobody asks for within half a second goes back to the system, from a
// thread of its own, so also while the caller never comes again.
//
// What it is not: aware of tensors. Called by bindings.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "transport/fork_guard.h"
#include "transport/region.h"

namespace hybridengine {

class FreshMemory;

/// The right to use a region. Ends with the object.
class Lease {
 public:
  Lease(RegionPtr region, std::weak_ptr<FreshMemory> owner);
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  Span span() const { return region_->span(); }

 private:
  RegionPtr region_;
  std::weak_ptr<FreshMemory> owner_;
};

class FreshMemory : public std::enable_shared_from_this<FreshMemory> {
 public:
  /// Of regions of so many bytes. Reserves nothing yet.
  explicit FreshMemory(size_t num_bytes) : num_bytes_(num_bytes) {}
  ~FreshMemory();

  /// Memory that nobody uses: what was lent before, with what is in it, or new zeros. Blocks while
  /// new memory is reserved. Throws as Region::make.
  std::shared_ptr<Lease> lend(const std::function<void()>& between);
  /// How long the last lend() reserved memory.
  double reserve_seconds() const { return reserve_seconds_; }

 private:
  friend class Lease;
  void take_back(RegionPtr region);

  ForkGuard guard_;
  size_t num_bytes_;
  double reserve_seconds_ = 0;
};

}  // namespace hybridengine
