#include "transport/host/run_block.h"

#include <algorithm>
#include <cstring>

namespace hybridengine {
namespace {

/// Half of what a core has for itself: larger blocks, and so fewer system calls, take longer again.
constexpr size_t kBlockBytes = 512 << 10;
/// Longer runs are as fast without it (measured: 4 KiB and less gain, 16 KiB lose).
constexpr size_t kShortBytes = 8 << 10;
constexpr size_t kFewestRuns = 8;
/// Fetched ahead of what is copied: rows of a matrix lie in pages of their own, into which the
/// hardware does not look ahead.
constexpr size_t kAheadBytes = 2048;
constexpr size_t kLineBytes = 64;

size_t bytes_of(std::span<const RemoteRun> runs) {
  size_t bytes = 0;
  for (const RemoteRun& run : runs) bytes += run.bytes;
  return bytes;
}

/// Calls `act(run, its place in the block)`, having fetched what comes some runs later.
template <class Act>
void for_each_run(std::span<const RemoteRun> runs, std::byte* block, const Act& act) {
  const size_t ahead = kAheadBytes / std::max<size_t>(1, runs.front().bytes) + 1;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i + ahead < runs.size())
      for (size_t at = 0; at < runs[i + ahead].bytes; at += kLineBytes)
        __builtin_prefetch(runs[i + ahead].local + at);
    act(runs[i], block);
    block += runs[i].bytes;
  }
}

}  // namespace

size_t RunBlock::fitting(std::span<const RemoteRun> runs) {
  size_t count = 0, bytes = 0;
  for (; count < runs.size(); ++count) {
    const RemoteRun& run = runs[count];
    if (run.bytes >= kShortBytes || bytes + run.bytes > kBlockBytes) break;
    if (run.remote.offset != runs.front().remote.offset + bytes) break;
    bytes += run.bytes;
  }
  return count < kFewestRuns ? 0 : count;
}

RemoteRun RunBlock::as_one(std::span<const RemoteRun> runs) {
  if (!block_) block_ = std::make_unique_for_overwrite<std::byte[]>(kBlockBytes);
  return {runs.front().remote, block_.get(), bytes_of(runs)};
}

void RunBlock::gather(std::span<const RemoteRun> runs) {
  for_each_run(runs, block_.get(),
               [](const RemoteRun& run, std::byte* at) { std::memcpy(at, run.local, run.bytes); });
}

void RunBlock::scatter(std::span<const RemoteRun> runs) const {
  for_each_run(runs, block_.get(),
               [](const RemoteRun& run, std::byte* at) { std::memcpy(run.local, at, run.bytes); });
}

}  // namespace hybridengine
