// CallScope: one call of a communicator, from its entry to its end, whichever it is.
//
// A call ends in one of three ways. leave(): all went well. withdraw(): all ranks found the same
// thing wrong, by an agreement within the call, and the communicator is as it was. Everything else
// is a failure of this rank, which every other rank hears at once with the reason: whatever its
// class, for the others wait for this rank. Meanwhile the thread logs as this rank.
//
// Every wait within it has a deadline (Communicator), leave() too. Called by collective/ and the
// bindings.
#pragma once

#include <exception>
#include <string>

#include "base/log.h"
#include "comm/communicator.h"

namespace hybridengine {

class CallScope {
 public:
  /// Enters the next call. Throws TransportError where the communicator is dead.
  explicit CallScope(Communicator& comm) : comm_(comm), rank_(comm.rank()) { comm.enter(); }
  /// A call that was neither left nor failed ends as a failure without a reason.
  ~CallScope() {
    if (open_) fail("it gave up a call without a reason");
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// `body()` within the call: what it throws fails the call and is thrown on.
  template <class Body>
  auto run(const Body& body) {
    try {
      return body();
    } catch (const std::exception& error) {
      fail(error.what());
      throw;
    }
  }

  /// Waits until all that this rank sent in the call is out of its hands. Throws as
  /// Communicator::leave() does; the call has failed then.
  void leave() {
    run([&] { comm_.leave(); });
    open_ = false;
  }
  /// Leaves, and throws `error`, which every rank throws alike.
  template <class Error>
  [[noreturn]] void withdraw(const Error& error) {
    leave();
    throw error;
  }
  void fail(const std::string& reason) noexcept {
    open_ = false;
    comm_.fail(reason);
  }

 private:
  Communicator& comm_;
  RankScope rank_;
  bool open_ = true;
};

}  // namespace hybridengine
