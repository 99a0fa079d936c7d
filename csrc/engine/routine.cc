#include "engine/routine.h"

#include "base/error.h"

namespace hybridengine {
namespace {

void check_count(const char* side, size_t given, size_t expected, Rank rank, const Layout& layout) {
  if (given == expected) return;
  throw UsageError(str_cat("a rank has another number of ", side, " tensors than its layout"),
                   str_cat(given, " given, ", expected, " on rank ", rank, " of ", layout.text()),
                   "");
}

}  // namespace

std::vector<TensorMemory> tensors_of(const Routine& routine, std::vector<TensorMemory> src,
                                     std::vector<TensorMemory> dst) {
  const Rank rank = routine.rank();
  const auto count_of = [&](const Layout& layout) {
    const auto [begin, end] = layout.locals_of(rank);
    return static_cast<size_t>(end - begin);
  };
  const Layout& layout = routine.dst_layout();
  check_count("source", src.size(), count_of(routine.src_layout()), rank, routine.src_layout());
  check_count("destination", dst.size(), routine.streaming() ? 0 : count_of(layout), rank, layout);
  const auto [begin, end] = layout.locals_of(rank);
  for (int32_t i = begin; routine.streaming() && i < end; ++i) {
    const LocalTensor& local = layout.locals()[i];
    dst.push_back({nullptr, local.shape, local.shape.contiguous_strides(), local.dtype});
  }
  src.insert(src.end(), dst.begin(), dst.end());
  return src;
}

void Routine::check_plan_of(Rank peer, uint64_t theirs) const {
  if (theirs == options_.plan) return;
  throw TransportError(
      "two ranks run different plans",
      str_cat("rank ", rank(), " and rank ", peer, ", digests ", options_.plan, " and ", theirs),
      "Every rank must call the same resharder, in the same order.");
}

const Program& Routine::program_for(std::span<const TensorMemory> tensors) {
  if (program_ && program_->fits(tensors)) return *program_;
  // A stream needs its parts in order: all of them go through slots.
  const ProgramOptions options{streaming() ? std::vector<Rank>{} : options_.readable};
  program_.emplace(schedule_, tensors, options);
  // The same parts whatever the strides: layouts alone tell them apart.
  in_place_.resize(program_->parts().size(), false);
  return *program_;
}

const std::vector<int64_t>& Routine::offsets_of_peer(Rank peer) {
  const auto [offsets, fresh] = peer_offsets_.try_emplace(peer);
  if (fresh) offsets->second = packed_offsets(dst_layout(), peer);
  return offsets->second;
}

}  // namespace hybridengine
