#include "layout/quota.h"

#include <algorithm>
#include <numeric>

namespace hybridengine {

std::vector<int64_t> level_quotas(const std::vector<int64_t>& load, const std::vector<Rank>& ranks,
                                  int64_t total) {
  std::vector<size_t> order(ranks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return load[ranks[a]] < load[ranks[b]]; });
  int64_t sum = total, level = 0;
  size_t filled = 0;
  for (; filled < order.size(); ++filled) {
    const int64_t next = load[ranks[order[filled]]];
    if (filled > 0 && next >= level) break;
    sum += next;
    level = (sum + static_cast<int64_t>(filled)) / static_cast<int64_t>(filled + 1);
  }
  std::vector<int64_t> quota(ranks.size(), 0);
  for (size_t i = 0; i < filled; ++i) {
    quota[order[i]] = std::max<int64_t>(0, level - load[ranks[order[i]]]);
    total -= quota[order[i]];
  }
  // The level was rounded up. Left as it is, the last one would lack what all others got more.
  for (size_t i = filled; i > 0 && total < 0; --i) {
    if (quota[order[i - 1]] == 0) continue;
    --quota[order[i - 1]];
    ++total;
  }
  return quota;
}

}  // namespace hybridengine
