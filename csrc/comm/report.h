// Report: what happened in one run, on this rank. Plain numbers; the bindings make a Python object.
#pragma once

#include <algorithm>
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
  int64_t direct_buckets = 0;  // of those in: put by the source, not through staging
  int64_t pulled_buckets = 0;  // of those in: read where they lay
  int64_t shown_buckets = 0;   // of direct ones: small enough for one exchange of all ranks
  int64_t read_buckets = 0;    // of those out: read by their destination where they lay
  int64_t verified_buckets = 0;
  std::vector<PairBytes> pairs;  // peers with payload, ascending
};

/// The row of `peer`, made where there is none.
inline PairBytes& pair_row(Report& report, Rank peer) {
  const auto row = std::ranges::lower_bound(report.pairs, peer, {}, &PairBytes::peer);
  if (row != report.pairs.end() && row->peer == peer) return *row;
  return *report.pairs.insert(row, {peer, 0, 0});
}

/// A bucket with so much payload has gone to `peer`, or has come from it.
inline void count_sent(Report& report, Rank peer, int64_t payload_bytes) {
  ++report.buckets_out;
  report.sent_bytes += payload_bytes;
  pair_row(report, peer).sent_bytes += payload_bytes;
}
inline void count_received(Report& report, Rank peer, int64_t payload_bytes) {
  ++report.buckets_in;
  report.received_bytes += payload_bytes;
  pair_row(report, peer).received_bytes += payload_bytes;
}

}  // namespace hybridengine
