#include "base/trace_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <tuple>

namespace hybridengine {
namespace {

/// Whoever holds it is alone in looking at the files of a folder and putting one there. Nothing is
/// left behind. Where a file system knows no locks two processes may meet by chance.
class FolderLock {
 public:
  explicit FolderLock(const std::string& path) {
    const auto folder = std::filesystem::path(path).parent_path();
    fd_ = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd_ >= 0) ::flock(fd_, LOCK_EX);
  }
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

}  // namespace

// Of the clock that file systems take: the fine one may be ahead of it.
TraceFiles::TraceFiles() { ::clock_gettime(CLOCK_REALTIME_COARSE, &began_); }

bool TraceFiles::put(const std::string& beside, const std::string& path) {
  const FolderLock lock(path);
  auto known = names_.find(path);
  if (known == names_.end()) known = names_.emplace(path, name_for(path)).first;
  return std::rename(beside.c_str(), known->second.c_str()) == 0;
}

std::string TraceFiles::name_for(const std::string& path) const {
  struct stat found{};
  if (::stat(path.c_str(), &found) != 0) return path;
  const bool earlier = std::tie(found.st_mtim.tv_sec, found.st_mtim.tv_nsec) <
                       std::tie(began_.tv_sec, began_.tv_nsec);
  // What is no file, such as a device, everybody may write to.
  if (earlier || !S_ISREG(found.st_mode)) return path;
  std::filesystem::path own(path);
  own.replace_filename(own.stem().string() + "." + std::to_string(::getpid()) +
                       own.extension().string());
  return own.string();
}

}  // namespace hybridengine
