// Bytes that are saved or sent: a writer and a reader that never reads past the end.
//
// Numbers are little-endian and fixed width. A reader meets bytes from files and peers, so every
// length is checked against what is left before anything is allocated. Called by save/load of
// Layout, Plan and Schedule and by comm.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/dtype.h"

namespace hybridengine {

using Blob = std::string;  // a Python bytes on the other side

class BlobWriter {
 public:
  /// Starts with `magic` (what this is) and `version` (of its format).
  BlobWriter(std::string_view magic, uint32_t version);
  BlobWriter() = default;

  template <class Number>
    requires std::is_arithmetic_v<Number> || std::is_enum_v<Number>
  void put(Number value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(std::string_view text);
  void put_bytes(std::string_view bytes) { put_text(bytes); }
  template <class Number>
  void put_all(std::span<const Number> values) {
    put<uint64_t>(values.size());
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }

  /// The bytes, closed by a digest of all that was put.
  Blob finish() &&;
  /// The bytes without a digest, for messages whose transport already guards them.
  Blob take() && { return std::move(bytes_); }

 private:
  Blob bytes_;
};

class BlobReader {
 public:
  /// Checks magic, version and digest. Throws UsageError that says which one is off. `blob` must
  /// outlive the reader.
  BlobReader(std::string_view blob, std::string_view magic, uint32_t version);
  explicit BlobReader(std::string_view blob) : left_(blob) {}

  /// Each throws UsageError ("truncated") where fewer bytes are left.
  template <class Number>
    requires std::is_arithmetic_v<Number> || std::is_enum_v<Number>
  Number get() {
    Number value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string get_text();        // throws on what is not UTF-8
  std::string_view get_bytes();  // any content; lies in the blob
  Dtype get_dtype();             // throws on a value that is no Dtype
  template <class Number>
  std::vector<Number> get_all() {
    const auto count = get<uint64_t>();
    check_count(count, sizeof(Number));
    const std::string_view bytes = take(count * sizeof(Number));
    std::vector<Number> values(count);
    if (count) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  /// Throws unless `count` items of at least `bytes_each` can still follow.
  void check_count(uint64_t count, size_t bytes_each) const;
  /// Throws UsageError if bytes are left over.
  void finish() const;

 private:
  std::string_view take(size_t bytes);

  std::string_view left_;
};

}  // namespace hybridengine
