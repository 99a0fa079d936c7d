// Segment: memory that this process owns and that peers may map, so that they write destination
// tensors in place.
//
// A segment has a number that is unique on this host for as long as it lives. All segments of the
// process are found by address, so that a tensor tells whether it lies in one. Made by the
// bindings (hybridengine.empty), published by transports.
#pragma once

#include <cstdint>
#include <memory>

#include "base/span.h"
#include "transport/host/sealed_memory.h"

namespace hybridengine {

class Segment {
 public:
  /// At least `bytes` of zeros, reserved now. Throws UsageError where there is no room.
  static std::shared_ptr<Segment> make(size_t bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  uint64_t id() const { return id_; }
  Span span() const { return memory_.memory.span(); }
  const Fd& fd() const { return memory_.fd; }

  /// The segment that holds all of `bytes` from `address`; null where none does.
  static std::shared_ptr<Segment> containing(const std::byte* address, size_t bytes);
  /// The living segment of this process with that number; null where there is none.
  static std::shared_ptr<Segment> find(uint64_t id);

 private:
  explicit Segment(SealedMemory memory);

  SealedMemory memory_;
  uint64_t id_;
};

using SegmentPtr = std::shared_ptr<Segment>;

}  // namespace hybridengine
