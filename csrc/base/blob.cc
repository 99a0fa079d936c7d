#include "base/blob.h"

#include "base/error.h"
#include "base/hash.h"

namespace hybridengine {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& facts) {
  throw UsageError(what, facts, "Save it again with this version of hybridengine.");
}

/// How many bytes follow the first one of a UTF-8 character; -1 where it begins none.
int num_following(unsigned char first) {
  if (first < 0x80) return 0;
  if (first >= 0xc2 && first < 0xe0) return 1;
  if (first >= 0xe0 && first < 0xf0) return 2;
  return first >= 0xf0 && first < 0xf5 ? 3 : -1;
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at]);
    const int following = num_following(first);
    if (following < 0 || text.size() - at <= static_cast<size_t>(following)) return false;
    uint32_t point = following == 0 ? first : first & (0x3f >> following);
    for (int i = 1; i <= following; ++i) {
      const auto next = static_cast<unsigned char>(text[at + i]);
      if ((next & 0xc0) != 0x80) return false;
      point = point << 6 | (next & 0x3f);
    }
    const bool overlong = (following == 2 && point < 0x800) || (following == 3 && point < 0x10000);
    if (overlong || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) return false;
    at += following + 1;
  }
  return true;
}

}  // namespace

BlobWriter::BlobWriter(std::string_view magic, uint32_t version) {
  put_text(magic);
  put(version);
}

void BlobWriter::put_text(std::string_view text) {
  put<uint64_t>(text.size());
  bytes_.append(text);
}

Blob BlobWriter::finish() && {
  put(digest_of(bytes_));
  return std::move(bytes_);
}

BlobReader::BlobReader(std::string_view blob, std::string_view magic, uint32_t version)
    : left_(blob) {
  if (blob.size() < sizeof(uint64_t))
    refuse("saved bytes are truncated", str_cat(blob.size(), " bytes"));
  uint64_t digest;
  left_.remove_suffix(sizeof digest);
  std::memcpy(&digest, blob.data() + left_.size(), sizeof digest);
  if (digest != digest_of(left_)) refuse("saved bytes are damaged", "their digest does not match");
  const std::string_view found = get_bytes();
  if (found != magic) refuse("saved bytes hold something else", str_cat("wanted ", magic));
  const auto found_version = get<uint32_t>();
  if (found_version != version)
    refuse("saved bytes have another format",
           str_cat(magic, " version ", found_version, ", this build reads ", version));
}

std::string BlobReader::get_text() {
  const std::string_view text = get_bytes();
  if (!is_utf8(text)) refuse("saved bytes hold a text that is not UTF-8", "");
  return std::string(text);
}

std::string_view BlobReader::get_bytes() {
  const auto count = get<uint64_t>();
  check_count(count, 1);
  return take(count);
}

Dtype BlobReader::get_dtype() {
  const auto value = get<uint8_t>();
  if (value >= kNumDtypes) refuse("saved bytes hold an unknown element type", str_cat(int{value}));
  return static_cast<Dtype>(value);
}

void BlobReader::check_count(uint64_t count, size_t bytes_each) const {
  if (count > left_.size() / bytes_each)
    refuse("saved bytes are truncated",
           str_cat(count, " items announced, ", left_.size(), " bytes left"));
}

void BlobReader::finish() const {
  if (!left_.empty()) refuse("saved bytes are too long", str_cat(left_.size(), " bytes left over"));
}

std::string_view BlobReader::take(size_t bytes) {
  if (bytes > left_.size())
    refuse("saved bytes are truncated", str_cat(bytes, " bytes wanted, ", left_.size(), " left"));
  const std::string_view front = left_.substr(0, bytes);
  left_.remove_prefix(bytes);
  return front;
}

}  // namespace hybridengine
