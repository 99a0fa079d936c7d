// Errors of the core: one sentence of what, then facts, then mend.
//
// Usage: the caller is wrong. Transport and Timeout: the world failed, and the communicator is dead
// afterwards. Internal: we are wrong. The bindings map each class to one Python exception.
// Every message is complete by itself: no caller adds context by catching and rethrowing.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace hybridengine {

/// Joins its arguments through operator<<. For messages, never for hot paths.
template <class... Parts>
std::string str_cat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

class Error : public std::runtime_error {
 public:
  /// `what` says what is wrong, `facts` the values that show it, `mend` what to do. The last two
  /// may be empty. Printed as "what: facts. mend".
  Error(const std::string& what, const std::string& facts, const std::string& mend);
};

/// You called it wrongly. Nothing has been changed.
class UsageError : public Error {
  using Error::Error;
};

/// The world failed: a peer died, closed or sent nonsense. The communicator is dead.
class TransportError : public Error {
  using Error::Error;
};

/// The world did not answer in time. The communicator is dead.
class TimeoutError : public Error {
  using Error::Error;
};

/// We are wrong: a broken promise inside the engine. Please report it.
class InternalError : public Error {
  using Error::Error;
};

/// The name of its class as Python knows it: "TransportError".
const char* kind_of(const std::exception& error);

/// Throws InternalError unless `ok`. The message is mandatory; `facts` returns the values that show
/// the fault and is only called then.
template <class Facts>
void ensure(bool ok, const char* what, const Facts& facts) {
  if (!ok) throw InternalError(what, facts(), "This is a fault in hybridengine; please report it.");
}

/// The same where the message says it all.
inline void ensure(bool ok, const char* what) {
  ensure(ok, what, [] { return std::string(); });
}

}  // namespace hybridengine
