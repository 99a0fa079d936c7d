#include "base/log.h"

#include <unistd.h>

#include <array>
#include <mutex>
#include <utility>

#include "base/env.h"

namespace hybridengine {
namespace {

constexpr std::array<std::string_view, 4> kLevelNames{"error", "warn", "info", "debug"};
constexpr std::array<std::string_view, kNumSubsystems> kSubsystemNames{
    "base", "layout", "plan",       "schedule", "device", "transport",
    "comm", "engine", "collective", "python",   "rlhf"};

constexpr uint64_t kUnread = ~uint64_t{0};

std::atomic<int> process_rank{kNoRank};
thread_local int thread_rank = kNoRank;

uint64_t enabled_bits(LogLevel level, SubsystemMask subsystems) {
  uint64_t bits = 0;
  for (int each = 0; each <= static_cast<int>(level); ++each) {
    const bool always = each <= static_cast<int>(LogLevel::kWarn);
    bits |= uint64_t{always ? kAllSubsystems : subsystems} << (16 * each);
  }
  return bits;
}

/// Writes all of `line`; a closed or full stderr loses it, which is no reason to fail.
void write_fully(std::string_view line) {
  while (!line.empty()) {
    const ssize_t count = ::write(STDERR_FILENO, line.data(), line.size());
    if (count <= 0) return;
    line.remove_prefix(static_cast<size_t>(count));
  }
}

void write_lines(LogLevel level, Subsystem subsystem, std::string_view text) {
  std::string prefix = "[hybridengine ";
  if (const int rank = current_rank(); rank != kNoRank) prefix += str_cat("rank ", rank, " ");
  prefix += str_cat(kLevelNames[static_cast<size_t>(level)], " ",
                    kSubsystemNames[static_cast<size_t>(subsystem)], "] ");
  std::string lines;
  while (true) {
    const size_t end = text.find('\n');
    lines.append(prefix).append(text.substr(0, end)).push_back('\n');
    if (end == std::string_view::npos || end + 1 == text.size()) break;
    text.remove_prefix(end + 1);
  }
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  write_fully(lines);
}

/// The first use. Logging never throws, so an illegal value is itself logged, once.
void read_settings() {
  uint64_t unread = kUnread;
  try {
    const uint64_t bits = enabled_bits(env_log_level(), env_log_subsystems());
    log_detail::enabled.compare_exchange_strong(unread, bits);
  } catch (const UsageError& error) {
    const uint64_t bits = enabled_bits(LogLevel::kWarn, kAllSubsystems);
    if (log_detail::enabled.compare_exchange_strong(unread, bits))
      write_lines(LogLevel::kError, Subsystem::kBase, error.what());
  }
}

template <size_t kCount>
size_t index_of(const std::array<std::string_view, kCount>& names, std::string_view name,
                const char* what) {
  std::string legal;
  for (size_t at = 0; at < kCount; ++at) {
    if (names[at] == name) return at;
    legal += (at == 0 ? "" : at + 1 == kCount ? " or " : ", ") + std::string(names[at]);
  }
  throw UsageError(str_cat("'", name, "' is not a ", what), "", "Use " + legal + ".");
}

}  // namespace

std::span<const std::string_view> log_level_names() { return kLevelNames; }
std::span<const std::string_view> subsystem_names() { return kSubsystemNames; }

LogLevel parse_log_level(std::string_view name) {
  return static_cast<LogLevel>(index_of(kLevelNames, name, "level"));
}

Subsystem parse_subsystem(std::string_view name) {
  return static_cast<Subsystem>(index_of(kSubsystemNames, name, "subsystem"));
}

void set_rank(int rank) { process_rank.store(rank, std::memory_order_relaxed); }
int set_thread_rank(int rank) { return std::exchange(thread_rank, rank); }

int current_rank() {
  return thread_rank != kNoRank ? thread_rank : process_rank.load(std::memory_order_relaxed);
}

void refresh_log() { log_detail::enabled = enabled_bits(env_log_level(), env_log_subsystems()); }

namespace log_detail {

std::atomic<uint64_t> enabled{kUnread};

void write(LogLevel level, Subsystem subsystem, std::string_view text) noexcept {
  try {
    if (enabled.load(std::memory_order_relaxed) == kUnread) read_settings();
    if (log_enabled(level, subsystem)) write_lines(level, subsystem, text);
  } catch (const std::bad_alloc&) {
    // Out of memory: the line is lost.
  }
}

}  // namespace log_detail
}  // namespace hybridengine
