// Small exchanges by a tree of messages.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "comm/communicator.h"

namespace hybridengine {
namespace {

// A rank's memory for a table is n times this at most, and so is what passes it.
constexpr size_t kEntryBytes = 8 << 10;

class Tree : public SmallExchange {
 public:
  explicit Tree(Communicator& comm)
      : comm_(comm), place_(comm.rank(), comm.world()), entry_(kEntryBytes) {}

  std::span<std::byte> entry() override { return entry_; }

  Entries exchange(size_t num_bytes, const char* doing) override {
    BlobWriter writer;
    writer.put(comm_.rank());
    writer.put(digest_of(doing));
    writer.put_bytes({reinterpret_cast<const char*>(entry_.data()), num_bytes});
    Blob upwards = std::move(writer).take();
    for (const Rank child : place_.children) upwards += comm_.receive_blob(child, doing);
    if (place_.parent >= 0) {
      comm_.send_blob(place_.parent, upwards);
      table_ = comm_.receive_blob(place_.parent, doing);
    } else {
      table_ = std::move(upwards);
    }
    for (const Rank child : place_.children) comm_.send_blob(child, table_);
    return read_table(digest_of(doing));
  }

 private:
  Entries read_table(uint64_t expected) {
    entries_.assign(comm_.world(), {});
    BlobReader reader(table_);
    for (int32_t count = 0; count < comm_.world(); ++count) {
      const auto rank = reader.get<Rank>();
      const auto tag = reader.get<uint64_t>();
      const std::string_view bytes = reader.get_bytes();
      ensure(rank >= 0 && rank < comm_.world(), "a table names a rank that there is not");
      if (tag != expected) comm_.throw_different_calls(rank);
      entries_[rank] = std::as_bytes(std::span(bytes));
    }
    return entries_;
  }

  Communicator& comm_;
  TreePlace place_;
  std::vector<std::byte> entry_;
  Blob table_;
  std::vector<std::span<const std::byte>> entries_;
};

}  // namespace

TreePlace::TreePlace(Rank rank, int32_t world) : parent(rank == 0 ? -1 : (rank - 1) / kFanOut) {
  for (int32_t nth = 1; nth <= kFanOut; ++nth) {
    const int64_t child = int64_t{rank} * kFanOut + nth;
    if (child < world) children.push_back(static_cast<Rank>(child));
  }
}

bool TreePlace::is_below(Rank rank, Rank child) {
  while (rank > child) rank = (rank - 1) / kFanOut;
  return rank == child;
}

std::unique_ptr<SmallExchange> make_tree(Communicator& comm) {
  return std::make_unique<Tree>(comm);
}

}  // namespace hybridengine
