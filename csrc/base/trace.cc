#include "base/trace.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "base/env.h"
#include "base/trace_file.h"

namespace hybridengine {
namespace {

// About 200 MB at most; a longer trace helps nobody, and memory must not grow without end.
constexpr size_t kMaxSpans = 1'000'000;

struct Event {
  std::string name;
  std::string args;
  Subsystem subsystem;
  int rank;
  int thread;
  int64_t start_ns;
  int64_t duration_ns;
};

struct Collector {
  std::mutex mutex;
  std::string path;
  std::vector<Event> events;
  uint64_t dropped = 0;
  TraceFiles files;
  pid_t owner = 0;  // a forked child must not overwrite its parent's file
};

/// Never destroyed: spans may close while the process exits.
Collector& collector() {
  static auto* const only = new Collector;
  return *only;
}

int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

int thread_number() {
  static std::atomic<int> last{0};
  thread_local const int number = ++last;
  return number;
}

void write_event(std::FILE* file, const Event& event) {
  const std::string_view subsystem = subsystem_names()[static_cast<size_t>(event.subsystem)];
  std::fprintf(file,
               ",\n{\"name\":%s,\"cat\":\"%.*s\",\"ph\":\"X\",\"ts\":%" PRId64
               ".%03d,\"dur\":%" PRId64 ".%03d,\"pid\":%d,\"tid\":%d,\"args\":{%s}}",
               event.name.c_str(), static_cast<int>(subsystem.size()), subsystem.data(),
               event.start_ns / 1000, static_cast<int>(event.start_ns % 1000),
               event.duration_ns / 1000, static_cast<int>(event.duration_ns % 1000), event.rank,
               event.thread, event.args.c_str());
}

[[noreturn]] void refuse(const std::string& path) {
  throw UsageError(str_cat("cannot write the trace ", path), std::strerror(errno),
                   "Set HYBRIDENGINE_TRACE to a path in a folder that can be written.");
}

/// Writes beside the file and renames, so that a reader never sees half of one.
void write_file(TraceFiles& files, const std::string& path, const std::vector<const Event*>& events,
                uint64_t dropped) {
  const std::string beside = str_cat(path, ".", ::getpid(), ".part");
  std::FILE* file = std::fopen(beside.c_str(), "w");
  if (!file) refuse(path);
  std::fprintf(file,
               "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_spans\":%" PRIu64
               "},\"traceEvents\":[",
               dropped);
  const char* separator = "\n";
  std::set<int> ranks;
  for (const Event* event : events) ranks.insert(event->rank);
  for (const int rank : ranks) {
    std::fprintf(file,
                 "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,"
                 "\"args\":{\"name\":\"rank %d\"}}",
                 separator, rank, rank);
    separator = ",\n";
  }
  // Whoever has events has a rank, so the separator is a comma from here on.
  for (const Event* event : events) write_event(file, *event);
  std::fputs("\n]}\n", file);
  const bool failed = std::ferror(file) != 0;
  if (std::fclose(file) != 0 || failed || !files.put(beside, path)) {
    std::remove(beside.c_str());
    refuse(path);
  }
}

void write_all(Collector& from) {
  if (from.path.empty() || from.owner != ::getpid()) return;
  std::map<std::string, std::vector<const Event*>> files;
  if (from.events.empty()) files[with_rank(from.path, current_rank())];
  for (const Event& event : from.events) files[with_rank(from.path, event.rank)].push_back(&event);
  for (const auto& [path, events] : files) write_file(from.files, path, events, from.dropped);
}

void flush_at_exit() {
  try {
    flush_trace();
  } catch (const UsageError& error) {
    log(LogLevel::kError, Subsystem::kBase, error.what());
  }
}

/// Starts collecting for `path`; the caller holds the mutex.
void use_path(Collector& to, std::string path) {
  static const bool registered = std::atexit(flush_at_exit) == 0;
  ensure(registered, "no exit handler could be registered");
  to.path = std::move(path);
  to.events.clear();
  to.dropped = 0;
  to.files = TraceFiles();
  to.owner = ::getpid();
  trace_detail::state = to.path.empty() ? trace_detail::kOff : trace_detail::kOn;
}

/// The length of the UTF-8 sequence at the start of `text`, 0 where there is none.
size_t utf8_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (lead > 0xf4 || length > text.size()) return 0;
  for (size_t at = 1; at < length; ++at)
    if ((static_cast<unsigned char>(text[at]) & 0xc0) != 0x80) return 0;
  if (length < 3) return length;
  // Not overlong, not a surrogate, not past U+10FFFF.
  const auto second = static_cast<unsigned char>(text[1]);
  const bool illegal = (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
                       (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f);
  return illegal ? 0 : length;
}

}  // namespace

std::string json_quoted(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const char first = text[0];
    if (length == 0) {
      quoted += "\\ufffd";
    } else if (first == '"' || first == '\\') {
      quoted += '\\';
      quoted += first;
    } else if (static_cast<unsigned char>(first) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(first));
      quoted += escape;
    } else {
      quoted += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return quoted + '"';
}

namespace trace_detail {

std::atomic<uint8_t> state{kUnread};

bool read_settings() noexcept {
  Collector& all = collector();
  const std::lock_guard lock(all.mutex);
  if (state == kUnread) use_path(all, env_trace());  // any path is legal: does not throw
  return state == kOn;
}

}  // namespace trace_detail

void refresh_trace() {
  Collector& all = collector();
  const std::lock_guard lock(all.mutex);
  std::string path = env_trace();
  if (path == all.path && trace_detail::state != trace_detail::kUnread) return;
  write_all(all);
  use_path(all, std::move(path));
}

void flush_trace() {
  if (!trace_enabled()) return;
  Collector& all = collector();
  const std::lock_guard lock(all.mutex);
  write_all(all);
}

TraceSpan& TraceSpan::arg(std::string_view key, std::string_view text) {
  if (start_ns_ >= 0) add(key, json_quoted(text));
  return *this;
}

void TraceSpan::start(std::string_view name) {
  name_ = json_quoted(name);
  start_ns_ = now_ns();
}

void TraceSpan::add(std::string_view key, std::string_view json) {
  if (!args_.empty()) args_ += ',';
  args_.append(json_quoted(key)).append(":").append(json);
}

void TraceSpan::stop() noexcept {
  const int64_t duration_ns = now_ns() - start_ns_;
  Collector& all = collector();
  const std::lock_guard lock(all.mutex);
  if (all.events.size() >= kMaxSpans) {
    ++all.dropped;
    return;
  }
  all.events.push_back({std::move(name_), std::move(args_), subsystem_, std::max(current_rank(), 0),
                        thread_number(), start_ns_, duration_ns});
}

}  // namespace hybridengine
