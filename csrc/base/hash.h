// A 64-bit digest for agreement between ranks and for finding damage. Not cryptographic: who may
// connect is decided elsewhere.
//
// Words of eight bytes go round-robin into four independent lanes (xor, multiply, rotate), so that
// the multiplier stays busy; the lanes are folded by 64x64 -> 128 bit products at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hybridengine {

class Digest {
 public:
  /// Feeds bytes. The value depends on the bytes and their order, not on how they were cut.
  void update(const void* data, size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  template <class Number>
  void update_number(Number value) {
    update(&value, sizeof value);
  }
  uint64_t value() const;

 private:
  void block(const unsigned char* data);

  uint64_t lanes_[4] = {0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb,
                        0x2545f4914f6cdd1d};
  unsigned char tail_[32] = {};
  size_t tail_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

inline uint64_t digest_of(std::string_view bytes) {
  Digest digest;
  digest.update(bytes);
  return digest.value();
}

}  // namespace hybridengine
