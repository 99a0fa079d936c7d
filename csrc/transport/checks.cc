#include "transport/checks.h"

#include "base/error.h"

namespace hybridengine {

void check_place(Rank rank, int32_t world) {
  if (rank >= 0 && rank < world) return;
  throw UsageError("there is no such rank", str_cat("rank ", rank, " of ", world),
                   "Ranks count from 0 to world - 1.");
}

void check_addresses(std::span<const Blob> addresses, int32_t world) {
  if (addresses.size() == static_cast<size_t>(world)) return;
  throw UsageError("connect() needs one address per rank",
                   str_cat(addresses.size(), " addresses for ", world, " ranks"),
                   "Leave the address of a rank that is not to be reached empty.");
}

void check_peer(Rank peer, Rank rank, int32_t world) {
  if (peer >= 0 && peer < world && peer != rank) return;
  throw UsageError("this rank is no peer",
                   str_cat("rank ", peer, ", asked by rank ", rank, " of ", world),
                   "Name another rank of the same world.");
}

void check_message(const Message& message) {
  if (message.kind > MessageKind::kBye)
    throw UsageError("this is no kind of message", str_cat(static_cast<uint32_t>(message.kind)),
                     str_cat("Use 0 to ", static_cast<uint32_t>(MessageKind::kBye)));
  if (message.text.size() > kMaxTextBytes)
    throw UsageError("the text of a message is too long",
                     str_cat(message.text.size(), " bytes, at most ", kMaxTextBytes),
                     "Cut it into several messages.");
}

void throw_not_connected(Rank peer) {
  throw UsageError("this rank is not connected", str_cat("rank ", peer),
                   "Call connect() with its address first.");
}

void throw_not_offered(Rank peer, uint64_t region) {
  throw TransportError("a peer grants memory that it has not offered",
                       str_cat("rank ", peer, ", region ", region), "");
}

std::byte* place_in(Span region, const RemoteRun& run, Rank peer, const char* what) {
  if (run.remote.offset <= region.bytes && run.bytes <= region.bytes - run.remote.offset)
    return region.data + run.remote.offset;
  throw TransportError(what,
                       str_cat("rank ", peer, ", ", run.bytes, " bytes at ", run.remote.offset,
                               " of ", region.bytes),
                       "Do all ranks run the same version?");
}

void throw_already_connected() {
  throw UsageError("connect() was called before", "an endpoint connects once",
                   "Make a new communicator.");
}

void throw_missing(const char* transport, std::span<const Rank> missing, double waited_s) {
  std::string ranks;
  for (const Rank rank : missing) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  throw TimeoutError(str_cat(missing.size() == 1 ? "rank " : "ranks ", ranks, " did not connect"),
                     str_cat(transport, ", waited ", waited_s, " s"),
                     "See the logs of these ranks; to wait longer set HYBRIDENGINE_TIMEOUT_S.");
}

}  // namespace hybridengine
