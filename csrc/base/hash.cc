#include "base/hash.h"

#include <algorithm>
#include <cstring>

namespace hybridengine {
namespace {

constexpr uint64_t kMultiplier = 0xd6e8feb86659fd93;

uint64_t fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

void Digest::block(const unsigned char* data) {
  for (int lane = 0; lane < 4; ++lane) {
    uint64_t word;
    std::memcpy(&word, data + 8 * lane, sizeof word);
    // The lane is added again: a zero product must not swallow what came before.
    lanes_[lane] = (lanes_[lane] ^ word) * kMultiplier + (lanes_[lane] >> 32);
    lanes_[lane] ^= lanes_[lane] >> 29;
  }
}

void Digest::update(const void* data, size_t bytes) {
  auto* next = static_cast<const unsigned char*>(data);
  total_bytes_ += bytes;
  if (tail_bytes_ > 0) {
    const size_t taken = std::min(bytes, sizeof tail_ - tail_bytes_);
    std::memcpy(tail_ + tail_bytes_, next, taken);
    tail_bytes_ += taken;
    next += taken;
    bytes -= taken;
    if (tail_bytes_ < sizeof tail_) return;
    block(tail_);
    tail_bytes_ = 0;
  }
  for (; bytes >= sizeof tail_; next += sizeof tail_, bytes -= sizeof tail_) block(next);
  if (bytes > 0) std::memcpy(tail_, next, bytes);
  tail_bytes_ = bytes;
}

uint64_t Digest::value() const {
  Digest last = *this;
  if (tail_bytes_ > 0) {
    std::memset(last.tail_ + tail_bytes_, 0, sizeof tail_ - tail_bytes_);
    last.block(last.tail_);
  }
  uint64_t mixed = fold(total_bytes_ + kMultiplier, lanes_[0] ^ kMultiplier);
  for (const uint64_t lane : last.lanes_) mixed = fold(mixed ^ lane, kMultiplier) + lane;
  return mixed ^ (mixed >> 31);
}

}  // namespace hybridengine
