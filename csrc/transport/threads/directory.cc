#include "transport/threads/directory.h"

#include <pthread.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <random>

#include "base/error.h"
#include "base/hash.h"

namespace hybridengine {
namespace {

constexpr uint64_t kMagic = 0x31'6b'63'61'62'70'6f'6c;  // "lopback1"

struct Address {
  uint64_t magic = kMagic;
  uint64_t nonce = 0;
  int64_t pid = 0;
  uint64_t id = 0;
  uint64_t digest = 0;  // of all before

  uint64_t expected_digest() const {
    return digest_of({reinterpret_cast<const char*>(this), offsetof(Address, digest)});
  }
};

Address decode(const Blob& blob, int32_t rank) {
  Address address;
  if (blob.size() == sizeof address) std::memcpy(&address, blob.data(), sizeof address);
  if (blob.size() != sizeof address || address.magic != kMagic ||
      address.digest != address.expected_digest())
    throw UsageError(str_cat("the address of rank ", rank, " is none of a thread"),
                     str_cat(blob.size(), " bytes, damaged or of another transport"),
                     "Pass what address() of that rank returned.");
  return address;
}

uint64_t random_number() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

}  // namespace

Directory::Directory() : nonce_(random_number()) {
  // A child forked while another thread holds the lock would never get it.
  ::pthread_atfork([] { instance().mutex.lock(); }, [] { instance().mutex.unlock(); },
                   [] { instance().mutex.unlock(); });
}

Directory& Directory::instance() {
  static auto& directory = *new Directory;
  return directory;
}

uint64_t Directory::add(const std::shared_ptr<Mailbox>& mailbox) {
  const std::lock_guard lock(mutex);
  mailboxes_[++last_id_] = mailbox;
  return last_id_;
}

void Directory::remove(uint64_t id) {
  const std::lock_guard lock(mutex);
  mailboxes_.erase(id);
}

Blob Directory::address_of(uint64_t id) const {
  Address address;
  address.nonce = nonce_;
  address.pid = ::getpid();
  address.id = id;
  address.digest = address.expected_digest();
  return Blob(reinterpret_cast<const char*>(&address), sizeof address);
}

bool Directory::is_here(const Blob& address, int32_t rank) const {
  const Address of_rank = decode(address, rank);
  return of_rank.nonce == nonce_ && of_rank.pid == ::getpid();
}

std::shared_ptr<Mailbox> Directory::find(const Blob& address, int32_t rank) const {
  const Address of_rank = decode(address, rank);
  if (of_rank.nonce != nonce_ || of_rank.pid != ::getpid())
    throw TransportError(str_cat("rank ", rank, " is in another process"),
                         str_cat("process ", of_rank.pid, ", here ", ::getpid()),
                         "Use a transport that reaches processes, such as shm.");
  const auto found = mailboxes_.find(of_rank.id);
  return found == mailboxes_.end() ? nullptr : found->second.lock();
}

}  // namespace hybridengine
