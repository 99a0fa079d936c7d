// Request: what one rank asks of a collective, and how ranks find out that they ask for the same.
//
// Vocabulary: the *logical* tensors of a request are those that several ranks have a part in: what
// all_reduce and broadcast change, what reduce_scatter takes, what all_gather gives.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/op.h"
#include "comm/communicator.h"
#include "engine/memory.h"

namespace hybridengine {

enum class Kind : uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier };

struct Request {
  Kind kind = Kind::kBarrier;
  Op op = Op::kCopy;
  Rank root = 0;             // of a broadcast
  int64_t bucket_bytes = 0;  // 0: that of Collectives on rank 0
  /// By tensor. Of all_reduce and broadcast both are the same memory.
  std::vector<TensorMemory> inputs, outputs;
  /// What is wrong with the arguments of this rank, "" when nothing is: all ranks raise it.
  std::string error;

  const std::vector<TensorMemory>& logical() const {
    return kind == Kind::kAllGather ? outputs : inputs;
  }
  std::string to_string() const;  // "all_reduce sum of 2 tensors: float32 [4, 3], ..."
};

/// Finds what is wrong with a request on this rank of `world`: puts it into error.
void check_request(Request& request, int32_t world);

struct Agreement {
  uint64_t digest = 0;      // of what the ranks agree on
  bool contiguous = false;  // all tensors of all ranks
  int64_t bucket_bytes = 0;
  /// Small payloads by rank; empty where they were too large to be posted.
  std::vector<std::span<const std::byte>> payloads;
  /// What is wrong, in the words that every rank throws; nothing else is set then.
  std::optional<UsageError> refusal;
};

/// Every rank shows what it asks for, with the bytes that it contributes where they fit. Refuses,
/// alike on all ranks, where one of them has an error or asks for something else. Throws as
/// Communicator::wait does.
Agreement agree(Communicator& comm, const Request& request, int64_t auto_bucket_bytes);

}  // namespace hybridengine
