#include "base/error.h"

#include <new>

namespace hybridengine {
namespace {

std::string message(const std::string& what, const std::string& facts, const std::string& mend) {
  std::string text = what;
  if (!facts.empty()) text += ": " + facts;
  if (!mend.empty()) text += ". " + mend;
  return text;
}

}  // namespace

Error::Error(const std::string& what, const std::string& facts, const std::string& mend)
    : std::runtime_error(message(what, facts, mend)) {}

const char* kind_of(const std::exception& error) {
  if (dynamic_cast<const UsageError*>(&error)) return "UsageError";
  if (dynamic_cast<const TransportError*>(&error)) return "TransportError";
  if (dynamic_cast<const TimeoutError*>(&error)) return "TimeoutError";
  if (dynamic_cast<const InternalError*>(&error)) return "InternalError";
  if (dynamic_cast<const std::bad_alloc*>(&error)) return "MemoryError";
  return "RuntimeError";
}

}  // namespace hybridengine
