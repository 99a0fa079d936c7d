// Handshake: turns the addresses of other ranks into ShmConnections.
//
// The lower rank of a pair knocks at the listener of the higher one and sends its *hello* with its
// board; the higher one checks who it is and answers with its own. Nobody waits for one particular
// rank, so the order in which ranks arrive does not matter. Whoever knocks and is none of the
// expected processes is dropped. Called by shm, once per endpoint.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "transport/host/shm_address.h"
#include "transport/host/shm_link.h"

struct pollfd;

namespace hybridengine {

class Handshake {
 public:
  struct Self {
    Rank rank = 0;
    std::string group;
    ShmAddress address;
    const Fd* listener = nullptr;
    const Fd* board = nullptr;
  };

  /// `addresses[r]` counts where `peers[r].expected`. Both outlive this object.
  Handshake(const Self& self, std::span<const ShmAddress> addresses,
            std::vector<ShmConnection>& peers);

  /// Blocks until all expected peers are connected. Throws as Endpoint::connect.
  void run(std::chrono::steady_clock::time_point deadline, const std::function<void()>& between);

 private:
  struct Guest {  // has knocked
    Fd socket;
    int pid = 0;
    Rank rank = -1;  // once it has said its hello, and waits for ours
  };

  void watch_processes();
  void knock();
  void knock_at(Rank rank);
  void let_in();
  void hear_guests();
  bool hear(Guest& guest);
  void hear_hosts();
  void greet(const Guest& guest, Received& hello);
  void admit(Rank rank, Received& hello);
  void check_hello(Rank rank, const Received& hello) const;
  void require_living() const;
  bool send_hello(const Fd& socket) const;
  std::vector<Rank> missing() const;
  void wait(std::chrono::milliseconds patience) const;
  bool is_expected(const ucred& who) const;
  void warn_of_stranger(const ucred& who);

  Self self_;
  std::span<const ShmAddress> addresses_;
  std::vector<ShmConnection>& peers_;
  std::vector<Guest> guests_;
  std::vector<Fd> knocking_;  // by rank: connected to a higher rank that has not answered
  bool warned_ = false;       // of a stranger
  bool busy_ = false;         // a listener had no room
};

}  // namespace hybridengine
