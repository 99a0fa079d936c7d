#include "base/env.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "base/error.h"

extern char** environ;

namespace hybridengine {
namespace {

constexpr std::string_view kPrefix = "HYBRIDENGINE_";
constexpr std::array<std::string_view, 3> kBuildOptions{
    "HYBRIDENGINE_CUDA", "HYBRIDENGINE_SANITIZE", "HYBRIDENGINE_WERROR"};

// More than eleven days of waiting is a slip of the keyboard.
constexpr double kMaxSeconds = 1e6;

[[noreturn]] void refuse(const EnvVariable& variable, std::string_view value) {
  throw UsageError(str_cat(variable.name, "=", value, " is not legal"), "",
                   str_cat("Use ", variable.legal, "."));
}

void check_any(const EnvVariable&, std::string_view) {}

void check_level(const EnvVariable& variable, std::string_view value) {
  const auto names = log_level_names();
  if (std::find(names.begin(), names.end(), value) == names.end()) refuse(variable, value);
}

SubsystemMask parse_subsystems(const EnvVariable& variable, std::string_view value) {
  SubsystemMask mask = 0;
  const auto names = subsystem_names();
  for (std::string_view left = value;;) {
    const size_t comma = left.find(',');
    const std::string_view name = left.substr(0, comma);
    const auto found = std::find(names.begin(), names.end(), name);
    if (name == "all")
      mask = kAllSubsystems;
    else if (found != names.end())
      mask = static_cast<SubsystemMask>(mask | (1 << (found - names.begin())));
    else
      refuse(variable, value);
    if (comma == std::string_view::npos) return mask;
    left.remove_prefix(comma + 1);
  }
}

void check_subsystems(const EnvVariable& variable, std::string_view value) {
  parse_subsystems(variable, value);
}

void check_flag(const EnvVariable& variable, std::string_view value) {
  if (value != "0" && value != "1") refuse(variable, value);
}

constexpr std::array<std::string_view, 5> kIsas{"auto", "x86-64-v2", "x86-64-v3", "x86-64-v4",
                                                "portable"};

void check_isa(const EnvVariable& variable, std::string_view value) {
  if (std::find(kIsas.begin(), kIsas.end(), value) == kIsas.end()) refuse(variable, value);
}

void check_name(const EnvVariable& variable, std::string_view value) {
  const auto legal = [](unsigned char letter) {
    return std::islower(letter) || std::isdigit(letter) || letter == '_' || letter == ',';
  };
  if (!std::all_of(value.begin(), value.end(), legal)) refuse(variable, value);
}

std::chrono::milliseconds parse_seconds(const EnvVariable& variable, std::string_view value) {
  double seconds = 0;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, seconds, std::chars_format::fixed);
  const bool legal =
      parsed.ec == std::errc{} && parsed.ptr == end && seconds >= 0.001 && seconds <= kMaxSeconds;
  if (!legal) refuse(variable, value);
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

void check_seconds(const EnvVariable& variable, std::string_view value) {
  parse_seconds(variable, value);
}

enum Row : size_t {
  kLog,
  kLogSubsys,
  kTrace,
  kDump,
  kCheck,
  kTransport,
  kTimeout,
  kEnterTimeout,
  kToken,
  kIsa,
  kNumRows,
};

constexpr std::string_view kLegalSeconds = "a number of seconds from 0.001 to 1000000";

constexpr std::array<EnvVariable, kNumRows> kTable{{
    {"HYBRIDENGINE_LOG", "what is logged to stderr: this level and those before it", "warn",
     "error, warn, info or debug", false, check_level},
    {"HYBRIDENGINE_LOG_SUBSYS", "the subsystems whose info and debug lines are shown", "all",
     "all or a comma-separated list of base, layout, plan, schedule, device, transport, comm, "
     "engine, collective, python, rlhf",
     false, check_subsystems},
    {"HYBRIDENGINE_TRACE",
     "file for a Chrome trace of this process; %r becomes the rank, so that ranks do not share one",
     "", "a path", false, check_any},
    {"HYBRIDENGINE_DUMP", "folder into which plans, schedules and programs are printed", "",
     "a folder", false, check_any},
    {"HYBRIDENGINE_CHECK", "1 proves every plan before it is used", "0", "0 or 1", false,
     check_flag},
    {"HYBRIDENGINE_TRANSPORT", "how bytes travel between ranks", "auto",
     "auto or the name of a transport, or several with commas between, in order of preference",
     false, check_name},
    {"HYBRIDENGINE_TIMEOUT_S", "seconds without progress after which a call fails", "300",
     kLegalSeconds, false, check_seconds},
    {"HYBRIDENGINE_ENTER_TIMEOUT_S",
     "seconds that the others wait for a living rank that has not entered the call", "1800",
     kLegalSeconds, false, check_seconds},
    {"HYBRIDENGINE_TOKEN", "secret that ranks prove to each other when they connect", "",
     "any text, the same on all ranks", true, check_any},
    {"HYBRIDENGINE_ISA", "instruction set of the loops that copy, convert and reduce on the CPU",
     "auto", "auto, x86-64-v2, x86-64-v3, x86-64-v4 or portable", false, check_isa},
}};

std::string_view raw_value(const EnvVariable& variable) {
  const char* value = std::getenv(variable.name.data());  // names are literals: terminated
  return value ? value : "";
}

/// The value or the default, checked.
std::string_view value_of(Row row) {
  const EnvVariable& variable = kTable[row];
  const std::string_view value = raw_value(variable);
  if (value.empty()) return variable.default_value;
  variable.check(variable, value);
  return value;
}

}  // namespace

std::span<const EnvVariable> env_variables() { return kTable; }

std::string shown_value(const EnvVariable& variable) {
  const std::string_view value = raw_value(variable);
  if (variable.secret) return value.empty() ? "unset" : "set";
  return std::string(value);
}

void check_env() {
  for (size_t row = 0; row < kNumRows; ++row) value_of(static_cast<Row>(row));
}

std::vector<std::string> unknown_env_names() {
  std::vector<std::string> unknown;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(kPrefix)) continue;
    const bool known = std::any_of(kTable.begin(), kTable.end(),
                                   [&](const EnvVariable& row) { return row.name == name; });
    const bool option =
        std::find(kBuildOptions.begin(), kBuildOptions.end(), name) != kBuildOptions.end();
    if (!known && !option) unknown.emplace_back(name);
  }
  std::sort(unknown.begin(), unknown.end());
  return unknown;
}

LogLevel env_log_level() { return parse_log_level(value_of(kLog)); }

SubsystemMask env_log_subsystems() {
  return parse_subsystems(kTable[kLogSubsys], value_of(kLogSubsys));
}

std::string env_trace() { return std::string(value_of(kTrace)); }
std::string env_dump() { return std::string(value_of(kDump)); }
bool env_check() { return value_of(kCheck) == "1"; }
std::string env_transport() { return std::string(value_of(kTransport)); }

std::chrono::milliseconds env_timeout() {
  return parse_seconds(kTable[kTimeout], value_of(kTimeout));
}

std::chrono::milliseconds env_enter_timeout() {
  return parse_seconds(kTable[kEnterTimeout], value_of(kEnterTimeout));
}

std::string env_token() { return std::string(value_of(kToken)); }

std::string env_isa() { return std::string(value_of(kIsa)); }

std::string with_rank(std::string_view pattern, int rank) {
  std::string text(pattern);
  const std::string number = std::to_string(std::max(rank, 0));
  for (size_t at = 0; (at = text.find("%r", at)) != std::string::npos; at += number.size())
    text.replace(at, 2, number);
  return text;
}

}  // namespace hybridengine
