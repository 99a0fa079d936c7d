#include "transport/host/shm_connect.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "transport/checks.h"
#include "transport/host/board_file.h"
#include "transport/host/sealed_memory.h"

namespace hybridengine {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{50};     // between two looks at the deadline and at `between`
constexpr milliseconds kBusyPatience{2};  // before knocking again at a listener without room
constexpr const char* kSeeItsLog = "See its log.";

[[noreturn]] void refuse_identity(Rank rank, const ucred& found, const ShmAddress& wanted) {
  throw TransportError(str_cat("rank ", rank, " is not who its address says"),
                       str_cat("process ", found.pid, " of uid ", found.uid, ", expected process ",
                               wanted.pid, " of uid ", wanted.uid),
                       "Make sure that all ranks use addresses of the same start.");
}

void check_identity(Rank rank, const ucred& found, const ShmAddress& wanted) {
  if (found.pid != wanted.pid || found.uid != wanted.uid) refuse_identity(rank, found, wanted);
}

void require_descriptor(const Received& hello) {
  if (hello.kind != Received::Kind::kNoDescriptor) return;
  throw TransportError("cannot connect to another rank", "no descriptor is left in this process",
                       "Raise the limit on open files (ulimit -n).");
}

}  // namespace

Handshake::Handshake(const Self& self, std::span<const ShmAddress> addresses,
                     std::vector<ShmConnection>& peers)
    : self_(self), addresses_(addresses), peers_(peers), knocking_(peers.size()) {}

void Handshake::run(Clock::time_point deadline, const std::function<void()>& between) {
  const auto began = Clock::now();
  watch_processes();
  for (;;) {
    knock();
    let_in();
    hear_guests();
    hear_hosts();
    const std::vector<Rank> absent = missing();
    if (absent.empty()) return;
    require_living();
    if (Clock::now() >= deadline)
      throw_missing("shm", absent, std::chrono::duration<double>(Clock::now() - began).count());
    wait(busy_ ? kBusyPatience : kPatience);
    between();
  }
}

void Handshake::watch_processes() {
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (!peers_[rank].expected) continue;
    require_reachable(self_.address, addresses_[rank], static_cast<Rank>(rank));
    peers_[rank].process = Process::watch(addresses_[rank].pid);
  }
}

void Handshake::knock() {
  busy_ = false;
  for (Rank rank = self_.rank + 1; rank < static_cast<Rank>(peers_.size()); ++rank) {
    if (peers_[rank].expected && !peers_[rank].socket && !knocking_[rank]) knock_at(rank);
  }
}

void Handshake::knock_at(Rank rank) {
  Connected made = connect_to(addresses_[rank].name.data());
  if (made.error == EAGAIN) {
    busy_ = true;
    return;
  }
  if (!made.socket)
    throw TransportError(str_cat("rank ", rank, " is gone"),
                         str_cat("process ", addresses_[rank].pid, " does not listen any more, ",
                                 std::strerror(made.error)),
                         kSeeItsLog);
  check_identity(rank, credentials(made.socket), addresses_[rank]);
  if (send_hello(made.socket))
    knocking_[rank] = std::move(made.socket);
  else
    busy_ = true;
}

void Handshake::let_in() {
  while (Fd socket = accept_from(*self_.listener)) {
    const ucred who = credentials(socket);
    if (is_expected(who))
      guests_.push_back({std::move(socket), who.pid});
    else
      warn_of_stranger(who);
  }
}

void Handshake::warn_of_stranger(const ucred& who) {
  if (warned_) return;
  warned_ = true;
  log(LogLevel::kWarn, Subsystem::kTransport, "dropped a connection of process ", who.pid,
      " of uid ", who.uid,
      ", which is no rank of this group; further ones are dropped without a word");
}

bool Handshake::is_expected(const ucred& who) const {
  for (Rank rank = 0; rank < self_.rank; ++rank) {
    if (peers_[rank].expected && addresses_[rank].pid == who.pid && addresses_[rank].uid == who.uid)
      return true;
  }
  return false;
}

void Handshake::hear_guests() {
  for (size_t index = 0; index < guests_.size();) {
    if (hear(guests_[index]))
      guests_.erase(guests_.begin() + static_cast<ptrdiff_t>(index));
    else
      ++index;
  }
}

/// True when there is nothing more to expect from this guest: it is connected, or sent nonsense.
bool Handshake::hear(Guest& guest) {
  if (guest.rank < 0) {
    Received hello = receive_frame(guest.socket);
    if (hello.kind == Received::Kind::kNothing) return false;
    require_descriptor(hello);
    if (hello.kind != Received::Kind::kFrame || hello.message.kind != kHello) return true;
    greet(guest, hello);
    guest.rank = static_cast<Rank>(hello.message.bucket);
  }
  if (!send_hello(guest.socket)) {
    busy_ = true;
    return false;
  }
  peers_[guest.rank].socket = std::move(guest.socket);
  return true;
}

/// Checks the hello of a lower rank and takes its board.
void Handshake::greet(const Guest& guest, Received& hello) {
  const uint32_t claimed = hello.message.bucket;
  const auto rank = static_cast<Rank>(claimed);
  const bool known = claimed < static_cast<uint32_t>(self_.rank) && peers_[rank].expected;
  if (!known || peers_[rank].socket)
    throw TransportError(
        "a process claims a rank that it cannot have",
        str_cat("process ", guest.pid, ", rank ", claimed,
                known ? ", which is connected already" : ", which is not expected"),
        "Give every rank a number of its own.");
  if (addresses_[rank].pid != guest.pid)
    refuse_identity(rank, {guest.pid, self_.address.uid, 0}, addresses_[rank]);
  admit(rank, hello);
}

void Handshake::hear_hosts() {
  for (Rank rank = self_.rank + 1; rank < static_cast<Rank>(peers_.size()); ++rank) {
    if (!knocking_[rank]) continue;
    Received hello = receive_frame(knocking_[rank]);
    if (hello.kind == Received::Kind::kNothing) continue;
    if (hello.kind == Received::Kind::kClosed) {
      const bool died = peers_[rank].process.ended(milliseconds(100));
      throw TransportError(
          str_cat("rank ", rank, died ? " died" : " refused the connection"),
          str_cat("process ", addresses_[rank].pid, died ? "" : " closed it without an answer"),
          kSeeItsLog);
    }
    admit(rank, hello);
    peers_[rank].socket = std::move(knocking_[rank]);
  }
}

void Handshake::admit(Rank rank, Received& hello) {
  check_hello(rank, hello);
  const size_t bytes = BoardFile::bytes(peers_.size());
  const std::string fault = sealed_memory_fault(hello.passed, bytes);
  if (!fault.empty())
    throw TransportError(str_cat("rank ", rank, " sent nonsense"), str_cat("its board: ", fault),
                         kSeeItsLog);
  peers_[rank].board = Mapping::shared(hello.passed, bytes, Mapping::Access::kRead);
}

void Handshake::check_hello(Rank rank, const Received& hello) const {
  const Message& message = hello.message;
  require_descriptor(hello);
  if (hello.kind != Received::Kind::kFrame || message.kind != kHello)
    throw TransportError(str_cat("rank ", rank, " sent nonsense"),
                         hello.reason.empty() ? "no hello" : hello.reason, kSeeItsLog);
  if (message.bucket == static_cast<uint32_t>(rank) && message.call == peers_.size() &&
      message.text == self_.group)
    return;
  throw TransportError(
      str_cat("rank ", rank, " belongs to another world"),
      str_cat("it is rank ", message.bucket, " of ", message.call, " in group '", message.text,
              "', expected rank ", rank, " of ", peers_.size(), " in group '", self_.group, "'"),
      "Pass the addresses of one group, in order of ranks.");
}

void Handshake::require_living() const {
  for (const Rank rank : missing()) {
    if (peers_[rank].process.ended(milliseconds(0)))
      throw TransportError(str_cat("rank ", rank, " died before it connected"),
                           str_cat("process ", addresses_[rank].pid), kSeeItsLog);
  }
}

/// False where the kernel has no room for it yet: the boards of others are under way.
bool Handshake::send_hello(const Fd& socket) const {
  Message hello;
  hello.kind = kHello;
  hello.bucket = static_cast<uint32_t>(self_.rank);
  hello.call = peers_.size();
  hello.text = self_.group;
  const Sent sent = send_frame(socket, hello, 0, self_.board);
  return sent != Sent::kFull && sent != Sent::kCrowded;
}

std::vector<Rank> Handshake::missing() const {
  std::vector<Rank> absent;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].expected && !peers_[rank].socket) absent.push_back(static_cast<Rank>(rank));
  }
  return absent;
}

/// Until something may have happened, at most for `patience`.
void Handshake::wait(milliseconds patience) const {
  std::vector<pollfd> entries{{self_.listener->get(), POLLIN, 0}};
  for (const Guest& guest : guests_) entries.push_back({guest.socket.get(), POLLIN, 0});
  for (const Fd& socket : knocking_) {
    if (socket) entries.push_back({socket.get(), POLLIN, 0});
  }
  for (const Rank rank : missing()) entries.push_back({peers_[rank].process.fd(), POLLIN, 0});
  ::poll(entries.data(), entries.size(), static_cast<int>(patience.count()));
}

}  // namespace hybridengine
