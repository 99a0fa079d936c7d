// A transport that reaches nobody: the smallest one that compiles. test_transport.py compiles it, so
// what docs/transports.md says about adding one stays true.
#include "transport/registry.h"

namespace hybridengine {
namespace {

class PaperTransport : public Transport {
 public:
  const char* name() const override { return "paper"; }
  const Caps& caps() const override { return caps_; }
  Blob address() override { return "paper"; }
  void connect(std::span<const Blob>, std::chrono::steady_clock::time_point,
               const std::function<void()>&) override {}
  bool offer(Rank, const RegionPtr&) override { return false; }
  Span map(Rank, uint64_t) override { return {}; }
  void release_gone() override {}
  bool readable(Rank) override { return false; }
  void read(Rank, std::span<const RemoteRun>) override {}
  void write(Rank, std::span<const RemoteRun>) override {}
  void send(Rank, const Message&) override {}
  bool sent_all(Rank) const override { return true; }
  void poll(std::vector<Arrival>&, std::chrono::microseconds) override {}
  Board* board(Rank) override { return nullptr; }

 private:
  Caps caps_{.payload = false, .page = false};
};

}  // namespace

extern const TransportEntry kPaper;

const TransportEntry kPaper{
    .name = "paper",
    .summary = "reaches nobody",
    .caps = {.payload = false, .page = false},
    .probe = [] { return Probe{.available = false, .reason = "it is only on paper"}; },
    .make = [](Rank, int32_t, const std::string&) -> std::unique_ptr<Transport> {
      return std::make_unique<PaperTransport>();
    },
};

}  // namespace hybridengine
