// cma: shm, and beside it the receiver reads the sender's ordinary memory, or the sender writes the
// receiver's (cross-memory attach, process_vm_readv and process_vm_writev), so that tensors which
// torch allocated are copied once.
//
// The kernel decides who may read whom: the same user, and under Yama (ptrace_scope 1) only a
// process that the target named or its descendants. So each rank names its launcher, the parent of
// all ranks, and each pair is tried with 8 bytes before it is relied upon.
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>

#include "base/error.h"
#include "base/log.h"
#include "transport/host/run_block.h"
#include "transport/host/shm.h"
#include "transport/registry.h"

namespace hybridengine {

extern const TransportEntry kCma, kShm;

namespace {

constexpr size_t kMaxEntries = 1024;  // of either end, per system call: the kernel takes no more

int yama_scope() {
  int scope = 0;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  return scope;
}

enum class Direction : uint8_t { kRead, kWrite };

/// What one system call moves. Neighbours become one entry at the end where they touch: the kernel
/// then walks the pages of that end once, however short the runs at the other end are.
class Batch {
 public:
  /// Takes as many runs as fit.
  explicit Batch(std::span<const RemoteRun> runs) {
    for (const RemoteRun& run : runs) {
      if (local_.full() || remote_.full()) break;
      local_.add(run.local, run.bytes);
      remote_.add(reinterpret_cast<std::byte*>(run.remote.offset), run.bytes);
      ++num_runs_;
    }
  }

  size_t num_runs() const { return num_runs_; }

  /// Bytes copied, or -1 with errno.
  ssize_t copy(int pid, Direction direction) const {
    const auto call = direction == Direction::kRead ? ::process_vm_readv : ::process_vm_writev;
    return call(pid, local_.entries, local_.count, remote_.entries, remote_.count, 0);
  }

 private:
  struct Entries {
    iovec entries[kMaxEntries];
    size_t count = 0;

    bool full() const { return count == kMaxEntries; }
    void add(std::byte* data, size_t bytes) {
      if (count > 0) {
        iovec& last = entries[count - 1];
        if (static_cast<std::byte*>(last.iov_base) + last.iov_len == data) {
          last.iov_len += bytes;
          return;
        }
      }
      entries[count++] = {data, bytes};
    }
  };

  Entries local_, remote_;
  size_t num_runs_ = 0;
};

ssize_t read_process(int pid, const RemoteRun& run) {
  return Batch(std::span(&run, 1)).copy(pid, Direction::kRead);
}

Probe probe_self() {
  uint64_t value = 42, copy = 0;
  const RemoteRun run{
      {0, reinterpret_cast<uint64_t>(&value)}, reinterpret_cast<std::byte*>(&copy), sizeof copy};
  if (read_process(::getpid(), run) != sizeof copy || copy != value)
    return {false, str_cat("process_vm_readv does not work here (", std::strerror(errno), ")")};
  copy = 0;
  if (Batch(std::span(&run, 1)).copy(::getpid(), Direction::kWrite) != sizeof copy || value != 0)
    return {false, str_cat("process_vm_writev does not work here (", std::strerror(errno), ")")};
  if (yama_scope() >= 2) return {false, "kernel.yama.ptrace_scope forbids it; set it to 0 or 1"};
  return {true, ""};
}

/// What the links of an endpoint share beside ShmSide.
struct Attach {
  uint64_t probe_value = 0;  // at an address that peers know
  bool warned = false;
  RunBlock block;
};

class CmaLink : public ShmLink {
 public:
  CmaLink(ShmSide& side, Attach& attach, Rank rank, Rank own, ShmConnection connection)
      : ShmLink(side, rank, own, std::move(connection)), attach_(attach) {}

  bool reaches() override {
    if (tried_ == Tried::kNo) tried_ = try_to_read() ? Tried::kGood : Tried::kBad;
    return tried_ == Tried::kGood;
  }

 protected:
  void copy_ordinary(std::span<const RemoteRun> runs, bool writing) override {
    const Direction direction = writing ? Direction::kWrite : Direction::kRead;
    while (!runs.empty()) {
      const size_t short_runs = RunBlock::fitting(runs);
      const size_t through = short_runs == 0 ? copy_batch(runs, direction)
                                             : copy_by_block(runs.first(short_runs), direction);
      runs = runs.subspan(through);
    }
  }

 private:
  enum class Tried : uint8_t { kNo, kGood, kBad };

  bool try_to_read() {
    const std::string fault = fault_of_reading();
    if (!fault.empty() && !attach_.warned) {
      attach_.warned = true;
      log(LogLevel::kWarn, Subsystem::kTransport, fault,
          "; copying through shared memory instead, with that rank and without a further word with "
          "others.");
    }
    return fault.empty();
  }

  /// Why the memory of the peer cannot be read, "" where it can.
  std::string fault_of_reading() {
    const int pid = process().pid();
    if (board().probe_address == 0)
      return str_cat(
          "rank ", rank(), " (process ", pid,
          ") uses shm and not cma, which it was told to or which is not available to it");
    const Probe own = probe_self();
    if (!own.available) return str_cat("cma is not available to this rank any more: ", own.reason);
    uint64_t found = 0;
    const RemoteRun run{
        {0, board().probe_address}, reinterpret_cast<std::byte*>(&found), sizeof found};
    const ssize_t copied = read_process(pid, run);
    const char* reason = copied < 0 ? std::strerror(errno) : "another process has its number";
    if (copied == sizeof found && found == board().probe_value) return "";
    return str_cat("cma cannot read the memory of rank ", rank(), " (process ", pid, ", ", reason,
                   "). Ranks must share a PID namespace, and a parent where "
                   "kernel.yama.ptrace_scope is 1");
  }

  /// Copies as many of the runs as one system call takes, and returns how many.
  size_t copy_batch(std::span<const RemoteRun> runs, Direction direction) {
    // A number that was given to a new process must not be touched: the pidfd knows.
    if (process().ended(std::chrono::milliseconds(0))) throw_gone(direction, "its process ended");
    const Batch batch(runs);
    const ssize_t copied = batch.copy(process().pid(), direction);
    if (copied < 0) throw_gone(direction, std::strerror(errno));
    return finish_batch(runs.first(batch.num_runs()), static_cast<size_t>(copied), direction);
  }

  size_t copy_by_block(std::span<const RemoteRun> runs, Direction direction) {
    const RemoteRun whole = attach_.block.as_one(runs);
    if (direction == Direction::kWrite) attach_.block.gather(runs);
    copy_batch(std::span(&whole, 1), direction);
    if (direction == Direction::kRead) attach_.block.scatter(runs);
    return runs.size();
  }

  /// The kernel may stop early, at a page that it cannot reach or where a call would take too long:
  /// the rest of that run is copied by itself. Returns how many runs are through.
  size_t finish_batch(std::span<const RemoteRun> batch, size_t copied, Direction direction) {
    size_t done = 0;
    for (; done < batch.size() && copied >= batch[done].bytes; ++done) copied -= batch[done].bytes;
    if (done == batch.size()) return done;
    RemoteRun rest = batch[done];
    for (;;) {
      rest = {{0, rest.remote.offset + copied}, rest.local + copied, rest.bytes - copied};
      if (rest.bytes == 0) return done + 1;
      const ssize_t more = Batch(std::span(&rest, 1)).copy(process().pid(), direction);
      if (more <= 0)
        throw_gone(direction, more < 0 ? std::strerror(errno) : "nothing could be copied");
      copied = static_cast<size_t>(more);
    }
  }

  [[noreturn]] void throw_gone(Direction direction, const char* reason) {
    const char* verb = direction == Direction::kRead ? "read" : "write";
    throw TransportError(str_cat("cannot ", verb, " the memory of rank ", rank()),
                         str_cat("process ", process().pid(), ", ", reason),
                         str_cat("See rank ", rank(), "'s log."));
  }

  Attach& attach_;
  Tried tried_ = Tried::kNo;
};

class CmaEndpoint : public ShmEndpoint {
 public:
  CmaEndpoint(Rank rank, int32_t world, const std::string& group)
      : ShmEndpoint(kCma.name, kCma.caps, rank, world, group) {
    if (yama_scope() == 1) ::prctl(PR_SET_PTRACER, ::getppid(), 0, 0, 0);
    attach_.probe_value = std::random_device{}();
    side().own().probe_address = reinterpret_cast<uint64_t>(&attach_.probe_value);
    side().own().probe_value = attach_.probe_value;
  }

 private:
  std::unique_ptr<ShmLink> make_link(Rank peer, ShmConnection connection) override {
    return std::make_unique<CmaLink>(side(), attach_, peer, rank(), std::move(connection));
  }

  Attach attach_;
};

}  // namespace

constinit const TransportEntry kCma{
    .name = "cma",
    .family = "host",
    .summary = "processes of one host: shared memory, and reading the sender's memory",
    .caps = {.maps = true, .pull = true, .processes = true},
    .probe =
        [] {
          const Probe shm = kShm.probe();
          return shm.available ? probe_self() : shm;
        },
    .make = [](Rank rank, int32_t world, const std::string& group) -> std::unique_ptr<Endpoint> {
      return std::make_unique<CmaEndpoint>(rank, world, group);
    },
};

}  // namespace hybridengine
