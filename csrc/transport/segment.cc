#include "transport/segment.h"

#include <map>
#include <mutex>
#include <random>

namespace hybridengine {
namespace {

/// Every living segment of this process, by number and by start address. Never destroyed: tensors
/// may outlive everything static.
struct Table {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<Segment>> by_id;
  std::map<const std::byte*, uint64_t> by_start;
};

Table& table() {
  static auto& instance = *new Table;
  return instance;
}

uint64_t random_id() {
  std::random_device device;
  const uint64_t id = static_cast<uint64_t>(device()) << 32 | device();
  return id == 0 ? 1 : id;  // 0 means "no segment"
}

}  // namespace

Segment::Segment(SealedMemory memory) : memory_(std::move(memory)), id_(random_id()) {}

SegmentPtr Segment::make(size_t bytes) {
  SegmentPtr segment(new Segment(make_sealed_memory("destination tensors", bytes)));
  const std::lock_guard lock(table().mutex);
  table().by_id[segment->id_] = segment;
  table().by_start[segment->span().data] = segment->id_;
  return segment;
}

Segment::~Segment() {
  const std::lock_guard lock(table().mutex);
  table().by_id.erase(id_);
  table().by_start.erase(span().data);
}

SegmentPtr Segment::find(uint64_t id) {
  const std::lock_guard lock(table().mutex);
  const auto found = table().by_id.find(id);
  return found == table().by_id.end() ? nullptr : found->second.lock();
}

SegmentPtr Segment::containing(const std::byte* address, size_t bytes) {
  uint64_t id = 0;
  {
    const std::lock_guard lock(table().mutex);
    auto after = table().by_start.upper_bound(address);
    if (after == table().by_start.begin()) return nullptr;
    id = std::prev(after)->second;
  }
  SegmentPtr segment = find(id);
  return segment && segment->span().contains(address, bytes) ? segment : nullptr;
}

}  // namespace hybridengine
