// Lines on stderr: "[hybridengine rank 3 warn transport] text".
//
// HYBRIDENGINE_LOG sets the level (default warn), HYBRIDENGINE_LOG_SUBSYS narrows info and debug to
// some subsystems; errors and warnings are always shown from every subsystem. What is off costs one
// branch, and its text is never put together. Safe from any thread. A line is one write(), so lines
// of several processes do not mix.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace hybridengine {

enum class LogLevel : uint8_t { kError, kWarn, kInfo, kDebug };

/// The folders of the core, then the parts above it.
enum class Subsystem : uint8_t {
  kBase,
  kLayout,
  kPlan,
  kSchedule,
  kDevice,
  kTransport,
  kComm,
  kEngine,
  kCollective,
  kPython,
  kRlhf,
};

/// One bit per Subsystem.
using SubsystemMask = uint16_t;
inline constexpr int kNumSubsystems = 11;
inline constexpr SubsystemMask kAllSubsystems = (1 << kNumSubsystems) - 1;

std::span<const std::string_view> log_level_names();  // in the order of LogLevel
std::span<const std::string_view> subsystem_names();  // in the order of Subsystem

/// The inverse of the names. Throws UsageError that lists the legal ones.
LogLevel parse_log_level(std::string_view name);
Subsystem parse_subsystem(std::string_view name);

inline constexpr int kNoRank = -1;

/// The rank that this process speaks as, in logs and traces; kNoRank at first.
void set_rank(int rank);
/// The same for the calling thread only, where ranks are threads. kNoRank: the process's again.
/// Returns what it was.
int set_thread_rank(int rank);
int current_rank();

/// The calling thread speaks as `rank` while this lives: a process has another rank in each of its
/// communicators.
class RankScope {
 public:
  explicit RankScope(int rank) : before_(set_thread_rank(rank)) {}
  ~RankScope() { set_thread_rank(before_); }
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  int before_;
};

/// Reads the two variables again. Otherwise they are read at the first use. Throws UsageError.
void refresh_log();

namespace log_detail {
// Bit 16 * level + subsystem: enabled. All ones before the first use, which finds out.
extern std::atomic<uint64_t> enabled;
void write(LogLevel level, Subsystem subsystem, std::string_view text) noexcept;
}  // namespace log_detail

inline bool log_enabled(LogLevel level, Subsystem subsystem) {
  const auto bit = 16 * static_cast<int>(level) + static_cast<int>(subsystem);
  return (log_detail::enabled.load(std::memory_order_relaxed) >> bit) & 1;
}

/// Joins `parts` through operator<< and writes them, where enabled. A text of several lines gets
/// the prefix on each.
template <class... Parts>
void log(LogLevel level, Subsystem subsystem, const Parts&... parts) {
  if (log_enabled(level, subsystem)) log_detail::write(level, subsystem, str_cat(parts...));
}

}  // namespace hybridengine
