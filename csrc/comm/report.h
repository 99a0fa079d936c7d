// Report: what happened in one run, on this rank. Plain numbers; the bindings make a Python object.
#pragma once

#include <cstdint>
#include <vector>

#include "base/rank.h"

namespace hybridengine {

/// Payload between this rank and one peer.
struct PairBytes {
  Rank peer = 0;
  int64_t received_bytes = 0;
  int64_t sent_bytes = 0;
};

struct Report {
  double seconds = 0;         // from entering the run to leaving it
  double wait_seconds = 0;    // of them waiting for peers
  double pack_seconds = 0;    // reading sources into buckets
  double unpack_seconds = 0;  // writing buckets to their places
  double local_seconds = 0;   // moves that stay on this rank
  int64_t received_bytes = 0;
  int64_t sent_bytes = 0;
  int64_t local_bytes = 0;
  int64_t staging_bytes = 0;  // memory beyond source and destination
  int64_t buckets_in = 0;
  int64_t buckets_out = 0;
  int64_t direct_buckets = 0;  // of those in: written in place by the source
  int64_t pulled_buckets = 0;  // of those in: read where they lay
  int64_t read_buckets = 0;    // of those out: read by their destination where they lay
  int64_t verified_buckets = 0;
  std::vector<PairBytes> pairs;  // peers with payload, ascending
};

}  // namespace hybridengine
