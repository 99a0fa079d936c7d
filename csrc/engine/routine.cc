#include "engine/routine.h"

namespace hybridengine {

const Program& Routine::program_for(std::span<const TensorMemory> tensors) {
  if (program_ && program_->fits(tensors)) return *program_;
  // A stream needs its parts in order: all of them go through slots.
  const ProgramOptions options{streaming() ? std::vector<Rank>{} : options_.readable};
  program_.emplace(schedule_, rank_, tensors, options);
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
