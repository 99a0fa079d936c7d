// Scoped spans, written as a Chrome trace (chrome://tracing, Perfetto) when HYBRIDENGINE_TRACE is
// set.
//
// A span is one complete event: process = rank, thread = the thread that closed it, category = its
// subsystem. Times come from the steady clock, which all processes of a host share. Off costs one
// branch. Spans stay in memory until the file is written: by flush_trace() and at exit of the
// process. Each write gives a whole, valid file with everything since the start.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/log.h"

namespace hybridengine {

/// Writes the file, or one per rank where the path contains %r; beside it, with this process's
/// number before the ending, where another process has it. Does nothing when tracing is off.
/// Throws UsageError where a file cannot be written.
void flush_trace();

/// Reads HYBRIDENGINE_TRACE again (otherwise it is read at the first span). Where the path changes,
/// the spans of the old one are written first and then forgotten. Throws UsageError.
void refresh_trace();

namespace trace_detail {
enum State : uint8_t { kUnread, kOff, kOn };
extern std::atomic<uint8_t> state;
bool read_settings() noexcept;  // false: off
}  // namespace trace_detail

inline bool trace_enabled() {
  const uint8_t state = trace_detail::state.load(std::memory_order_relaxed);
  if (state == trace_detail::kOff) return false;
  return state == trace_detail::kOn || trace_detail::read_settings();
}

/// Measures from its construction to its destruction, on one thread.
///
///   TraceSpan span(Subsystem::kEngine, "pack");
///   span.arg("bucket", bucket);
class TraceSpan {
 public:
  TraceSpan(Subsystem subsystem, std::string_view name) : subsystem_(subsystem) {
    if (trace_enabled()) start(name);
  }
  ~TraceSpan() {
    if (start_ns_ >= 0) stop();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

  /// A number or a text to show with the span. Keys are plain words.
  TraceSpan& arg(std::string_view key, int64_t value) {
    if (start_ns_ >= 0) add(key, std::to_string(value));
    return *this;
  }
  TraceSpan& arg(std::string_view key, std::string_view text);

 private:
  void start(std::string_view name);
  void stop() noexcept;
  void add(std::string_view key, std::string_view json);

  Subsystem subsystem_;
  int64_t start_ns_ = -1;  // < 0: off
  std::string name_;
  std::string args_;  // JSON members, comma-separated
};

/// `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string json_quoted(std::string_view text);

}  // namespace hybridengine
