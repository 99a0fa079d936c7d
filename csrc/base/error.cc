#include "base/error.h"

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

}  // namespace hybridengine
