#include "plan/certificate.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "base/error.h"

namespace hybridengine {
namespace {

std::string gigabytes(int64_t bytes) {
  std::ostringstream text;
  text.precision(2);
  text << std::fixed;
  if (bytes >= 1'000'000'000)
    text << static_cast<double>(bytes) / 1e9 << " GB";
  else if (bytes >= 1'000'000)
    text << static_cast<double>(bytes) / 1e6 << " MB";
  else
    text << bytes << " B";
  return text.str();
}

}  // namespace

double Certificate::received_over_bound() const {
  double worst = 1;
  for (const RankBytes& row : ranks) {
    if (row.bound_bytes > 0)
      worst = std::max(
          worst, static_cast<double>(row.received_bytes) / static_cast<double>(row.bound_bytes));
    else if (row.received_bytes > 0)
      worst = std::numeric_limits<double>::infinity();
  }
  return worst;
}

double Certificate::sender_max_over_mean() const {
  int64_t most = 0, total = 0;
  for (const RankBytes& row : ranks) {
    most = std::max(most, row.sent_bytes);
    total += row.sent_bytes;
  }
  if (total == 0) return 1;
  return static_cast<double>(most) * static_cast<double>(senders.size()) /
         static_cast<double>(total);
}

int64_t Certificate::moved_bytes() const {
  int64_t bytes = 0;
  for (const RankBytes& row : ranks) bytes += row.received_bytes;
  return bytes;
}

std::string Certificate::to_string() const {
  std::string text;
  for (const RankBytes& row : ranks)
    text += str_cat("rank ", row.rank, ": received ", gigabytes(row.received_bytes), " of ",
                    gigabytes(row.bound_bytes), " bound, held ", gigabytes(row.held_bytes),
                    ", sent ", gigabytes(row.sent_bytes), "\n");
  return text;
}

int64_t held_elems(const Layout& layout, int32_t tensor, Rank rank, const Box& box) {
  const std::span<const Piece> pieces = layout.pieces_of(tensor);
  const auto begin = std::partition_point(pieces.begin(), pieces.end(),
                                          [&](const Piece& piece) { return piece.rank < rank; });
  const auto end = std::partition_point(begin, pieces.end(),
                                        [&](const Piece& piece) { return piece.rank == rank; });
  std::vector<Box> missing{box};
  for (auto piece = begin; piece != end; ++piece) subtract_from(missing, piece->box);
  int64_t held = box.num_elems();
  for (const Box& part : missing) held -= part.num_elems();
  return held;
}

}  // namespace hybridengine
