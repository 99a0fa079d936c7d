// The file that a trace goes to: never one that another process of the same time writes.
//
// Processes may speak as the same rank, of different communicators, or name no rank in the path at
// all. Whoever comes first has the path; the others write beside it, with their process number. A
// file from before this process began to trace is of an earlier run and is replaced.
//
// Called by trace, under its lock.
#pragma once

#include <ctime>
#include <map>
#include <string>

namespace hybridengine {

class TraceFiles {
 public:
  TraceFiles();

  /// Moves the finished file `beside` to `path`, or to this process's own name for it: the same one
  /// each time. False, with errno, where it cannot.
  bool put(const std::string& beside, const std::string& path);

 private:
  std::string name_for(const std::string& path) const;

  timespec began_{};
  std::map<std::string, std::string> names_;  // by path: what this process writes
};

}  // namespace hybridengine
