// The environment variables of hybridengine, all of them, in one table.
//
// A variable is read when it is needed, never when the library is loaded; log and trace keep what
// they read until refresh_log() and refresh_trace(). A variable that is set to nothing counts as
// unset. A value that is not legal is a UsageError that says what is; nothing falls back to a
// default silently. Build options (HYBRIDENGINE_CUDA and others) are not variables of the library.
//
// A new variable: one row in env.cc and, where the core needs it, one getter here.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace hybridengine {

struct EnvVariable {
  std::string_view name;
  std::string_view meaning;
  std::string_view default_value;  // "" where unset means off
  std::string_view legal;          // in words, as errors print it
  bool secret;                     // its value is never shown
  void (*check)(const EnvVariable& variable, std::string_view value);  // throws UsageError
};

std::span<const EnvVariable> env_variables();

/// What may be shown of the variable's present value: "" when unset; "set" or "unset" for a secret.
/// Does not check it.
std::string shown_value(const EnvVariable& variable);

/// Throws UsageError for the first variable whose value is not legal.
void check_env();

/// Names in the environment that start with HYBRIDENGINE_ and are neither variables nor build
/// options: misspellings. Sorted.
std::vector<std::string> unknown_env_names();

// Typed values; each throws UsageError where the value is not legal.
LogLevel env_log_level();
SubsystemMask env_log_subsystems();
std::string env_trace();  // path with %r, "" = off
std::string env_dump();   // folder, "" = off
bool env_check();
std::string env_transport();  // "auto" or a name, which only the registry can judge
std::chrono::milliseconds env_timeout();
std::chrono::milliseconds env_enter_timeout();
std::string env_token();  // secret: never log it; "" = none
std::string env_isa();    // "auto" or a name; device/isa.h knows whether the CPU has it

/// `pattern` with every %r replaced by the rank; by 0 before there is one.
std::string with_rank(std::string_view pattern, int rank);

}  // namespace hybridengine
