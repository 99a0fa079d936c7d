#include "transport/region.h"

#include <map>
#include <mutex>
#include <random>

namespace hybridengine {
namespace {

/// Every living region of this process, by number and by start address. Never destroyed: tensors
/// may outlive everything static.
struct Table {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<Region>> by_id;
  std::map<const std::byte*, uint64_t> by_start;
};

Table& table() {
  static auto& instance = *new Table;
  return instance;
}

uint64_t random_id() {
  std::random_device device;
  const uint64_t id = static_cast<uint64_t>(device()) << 32 | device();
  return id == 0 ? 1 : id;  // 0 means "no region"
}

}  // namespace

Region::Region(SealedMemory memory) : memory_(std::move(memory)), id_(random_id()) {}

RegionPtr Region::make(const char* purpose, size_t bytes, const std::function<void()>& between) {
  RegionPtr region(new Region(make_sealed_memory(purpose, bytes, between)));
  const std::lock_guard lock(table().mutex);
  table().by_id[region->id_] = region;
  table().by_start[region->span().data] = region->id_;
  return region;
}

Region::~Region() {
  if (!guard_.same_process()) return;  // the memory is the parent's; only copies close here
  {
    const std::lock_guard lock(table().mutex);
    table().by_id.erase(id_);
    table().by_start.erase(span().data);
  }
  memory_.give_back();
}

RegionPtr Region::find(uint64_t id) {
  const std::lock_guard lock(table().mutex);
  const auto found = table().by_id.find(id);
  return found == table().by_id.end() ? nullptr : found->second.lock();
}

RegionPtr Region::containing(const std::byte* address, size_t bytes) {
  uint64_t id = 0;
  {
    const std::lock_guard lock(table().mutex);
    auto after = table().by_start.upper_bound(address);
    if (after == table().by_start.begin()) return nullptr;
    id = std::prev(after)->second;
  }
  RegionPtr region = find(id);
  return region && region->span().contains(address, bytes) ? region : nullptr;
}

}  // namespace hybridengine
