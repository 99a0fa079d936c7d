// Every rank's blobs for every rank, when most of them are equal: what ranks state of one model.
//
// Each rank first shows, in a small exchange, length and digest of each of its *parts*, with the
// bytes where they fit. What did not fit travels once for each *different* part, however many ranks
// have it: from the lowest that does (its *giver*) up the tree to rank 0, and from there down.
//
// Growth with n ranks: 16 bytes a part and rank come to each rank. With d bytes of different parts
// in all, a rank receives d, and sends kFanOut * d at most; with equal parts nothing is sent.
#include <algorithm>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/hash.h"
#include "comm/communicator.h"

namespace hybridengine {
namespace {

struct PartKey {
  uint64_t bytes = 0, digest = 0;
  auto operator<=>(const PartKey&) const = default;
};

/// What goes into an entry: number of parts, their keys, and their bytes where `inlined`.
struct EntryHead {
  uint32_t num_parts = 0;
  uint32_t inlined = 0;
};

using Keys = std::vector<PartKey>;
using Texts = std::map<PartKey, std::shared_ptr<const Blob>>;

constexpr const char* kDoing = "agreeing with the other ranks";
/// Where entries travel as messages, bytes beyond this are better sent once than by every rank.
constexpr size_t kInlineBytes = 256;

size_t write_entry(std::span<const Blob> parts, const Keys& keys, std::span<std::byte> room,
                   bool mapped) {
  const size_t head_bytes = sizeof(EntryHead) + keys.size() * sizeof(PartKey);
  size_t total = 0;
  for (const Blob& part : parts) total += part.size();
  EntryHead head{static_cast<uint32_t>(keys.size()), 0};
  if (head_bytes > room.size())
    throw InternalError("too many parts to agree on", str_cat(keys.size()), "");
  head.inlined = total <= (mapped ? room.size() - head_bytes : kInlineBytes);
  std::memcpy(room.data(), &head, sizeof head);
  if (!keys.empty())
    std::memcpy(room.data() + sizeof head, keys.data(), keys.size() * sizeof(PartKey));
  size_t used = head_bytes;
  for (const Blob& part : parts) {
    if (head.inlined == 0 || part.empty()) continue;
    std::memcpy(room.data() + used, part.data(), part.size());
    used += part.size();
  }
  return used;
}

/// The keys of an entry; what it has inline goes to `texts`.
Keys read_entry(std::span<const std::byte> entry, Texts& texts) {
  BlobReader reader({reinterpret_cast<const char*>(entry.data()), entry.size()});
  const auto num_parts = reader.get<uint32_t>();
  const auto inlined = reader.get<uint32_t>();
  reader.check_count(num_parts, sizeof(PartKey));
  Keys keys(num_parts);
  for (PartKey& key : keys) key = {reader.get<uint64_t>(), reader.get<uint64_t>()};
  size_t at = sizeof(EntryHead) + num_parts * sizeof(PartKey);
  for (const PartKey& key : keys) {
    if (inlined == 0) break;
    ensure(key.bytes <= entry.size() - at, "an entry is shorter than it says");
    if (!texts.contains(key))
      texts[key] =
          std::make_shared<const Blob>(reinterpret_cast<const char*>(entry.data()) + at, key.bytes);
    at += key.bytes;
  }
  return keys;
}

struct Gift {
  Rank giver;
  PartKey key;
};

/// What must travel, in an order that all ranks know.
std::vector<Gift> gifts_of(const std::vector<Keys>& keys, const Texts& inlined) {
  std::vector<Gift> gifts;
  std::map<PartKey, Rank> given;
  for (Rank rank = 0; rank < static_cast<Rank>(keys.size()); ++rank)
    for (const PartKey& key : keys[rank])
      if (!inlined.contains(key) && given.emplace(key, rank).second) gifts.push_back({rank, key});
  return gifts;
}

}  // namespace

std::vector<std::vector<std::shared_ptr<const Blob>>> Communicator::gather(
    std::span<const Blob> parts) {
  check_alive();
  Texts texts, mine;
  Keys own;
  for (const Blob& part : parts) {
    own.push_back({part.size(), digest_of(part)});
    mine.emplace(own.back(), std::make_shared<const Blob>(part));
  }
  const size_t num_bytes = write_entry(parts, own, small_->entry(), mapped_);
  std::vector<Keys> keys;
  for (const auto& entry : small_->exchange(num_bytes, kDoing))
    keys.push_back(read_entry(entry, texts));
  const std::vector<Gift> gifts = gifts_of(keys, texts);
  if (!gifts.empty()) {
    // Up: each gift by way of its giver's ancestors. Down: all of them, to everybody.
    const TreePlace place(rank_, world_);
    for (const Gift& gift : gifts) {
      Blob text;
      if (gift.giver == rank_) text = *mine.at(gift.key);
      for (const Rank child : place.children)
        if (TreePlace::is_below(gift.giver, child)) text = receive_blob(child, kDoing);
      const bool passes = gift.giver == rank_ || TreePlace::is_below(gift.giver, rank_);
      if (passes && place.parent >= 0) send_blob(place.parent, text);
      if (place.parent < 0) texts[gift.key] = std::make_shared<const Blob>(std::move(text));
    }
    for (const Gift& gift : gifts) {
      if (place.parent >= 0)
        texts[gift.key] = std::make_shared<const Blob>(receive_blob(place.parent, kDoing));
      for (const Rank child : place.children) send_blob(child, *texts[gift.key]);
    }
    flush();
  }
  std::vector<std::vector<std::shared_ptr<const Blob>>> all(world_);
  for (Rank rank = 0; rank < world_; ++rank)
    for (const PartKey& key : keys[rank]) all[rank].push_back(texts.at(key));
  return all;
}

}  // namespace hybridengine
