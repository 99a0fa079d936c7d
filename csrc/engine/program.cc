#include "engine/program.h"

#include <algorithm>

#include "base/error.h"
#include "engine/runs.h"

namespace hybridengine {
namespace {

/// Mean length of runs from which on one system call moves them as fast as a plain copy (measured,
/// see bench/results): shorter ones pay for the pages that each of them touches.
constexpr int64_t kLongRunBytes = 16 << 10;
/// Where one end is long, the other may be as short as this: its runs go by way of a block in cache
/// to and from one long run. Two copies through staging are faster for shorter ones (measured).
constexpr int64_t kShortRunBytes = 2 << 10;

constexpr int64_t kContributionAlignment = 64;

int64_t aligned(int64_t offset, int64_t unit) { return (offset + unit - 1) / unit * unit; }

/// From the layouts alone, so that both ends find the same.
Manner manner_of(const Plan& plan, const Move& move, const Item& item) {
  if (move.reduces() || move.codec != Codec::kNone || move.src_dtype != move.dst_dtype)
    return Manner::kPack;
  const Dims src = plan.src_place(move, item.box).strides;
  const Dims dst = plan.dst_place(move, item.box).strides;
  const Dims both[] = {src, dst};
  const int64_t bytes = item_bytes(move, item);
  const int64_t runs = count_runs(both, item.box);
  if (runs == 1 || bytes >= runs * kLongRunBytes) return Manner::kRead;
  if (bytes < runs * kShortRunBytes) return Manner::kPack;
  if (bytes >= count_runs(std::span(&dst, 1), item.box) * kLongRunBytes) return Manner::kWrite;
  if (bytes >= count_runs(std::span(&src, 1), item.box) * kLongRunBytes) return Manner::kRead;
  return Manner::kPack;
}

}  // namespace

StridedEnd packed_end(const Copy& copy, std::byte* part) {
  Shape shape;
  shape.ndim = copy.box.ndim;
  shape.size = copy.box.size;
  return {part + copy.offset_bytes, shape.contiguous_strides(), copy.wire};
}

int64_t Program::shown_bytes(const Schedule& schedule) {
  int64_t bytes = 0;
  for (const int32_t id : schedule.outgoing())
    bytes += schedule.buckets()[id].num_bytes + kNumManners * kPartOverhead;
  return bytes;
}

Program::Program(SchedulePtr schedule, std::span<const TensorMemory> tensors,
                 const ProgramOptions& options)
    : schedule_(std::move(schedule)),
      rank_(schedule_->rank()),
      reduces_(schedule_->plan().reduces()) {
  check_tensors(tensors);
  num_sources_ = num_sources_of(rank_);
  // resolve() counts from an address; any will do.
  alignas(64) static std::byte anywhere[64];
  shapes_.assign(tensors.begin(), tensors.end());
  for (TensorMemory& tensor : shapes_) {
    if (tensor.data == nullptr) tensor.strides = tensor.shape.contiguous_strides();
    tensor.data = anywhere;
  }
  add_buckets(options);
  add_folds();
  add_local_copies();
}

void Program::check_tensors(std::span<const TensorMemory> tensors) const {
  size_t at = 0;
  for (const Layout* layout : {&src_layout(), &dst_layout()}) {
    const auto [begin, end] = layout->locals_of(rank_);
    for (int32_t i = begin; i < end; ++i) check_memory(*layout, layout->locals()[i], tensors[at++]);
  }
}

bool Program::fits(std::span<const TensorMemory> tensors) const {
  return std::ranges::equal(tensors, shapes_, [](const TensorMemory& a, const TensorMemory& b) {
    return a.shape == b.shape && a.dtype == b.dtype &&
           (a.data == nullptr ? is_contiguous(b) : a.strides == b.strides);
  });
}

void Program::check_target(int32_t target, const TensorMemory& memory) const {
  const auto begin = dst_layout().locals_of(rank_).first;
  check_memory(dst_layout(), dst_layout().locals()[begin + target], memory);
  if (!is_contiguous(memory))
    throw UsageError("a tensor that is asked for must be contiguous", memory.shape.to_string(),
                     "Make it anew.");
}

int64_t Program::target_bytes(int32_t target) const {
  const TensorMemory& tensor = shapes_[num_sources_ + target];
  return tensor.shape.num_elems() * static_cast<int64_t>(dtype_bytes(tensor.dtype));
}

int32_t Program::num_sources_of(Rank rank) const {
  const auto [begin, end] = src_layout().locals_of(rank);
  return end - begin;
}

/// What a move of step 1 reads is a destination tensor of its source.
int32_t Program::src_tensor(const Move& move) const {
  const int32_t local = schedule_->plan().src_local(move);
  if (move.step == 0) return local - src_layout().locals_of(move.src).first;
  return local - dst_layout().locals_of(move.src).first + num_sources_of(move.src);
}

int32_t Program::dst_tensor(const Move& move) const {
  return schedule_->plan().dst_local(move) - dst_layout().locals_of(move.dst).first +
         num_sources_of(move.dst);
}

End Program::end_of(Rank rank, int32_t tensor, const LocalPlace& place, const Box& box,
                    Dtype dtype) const {
  if (rank != rank_)
    return {tensor, place.offset_elems * static_cast<int64_t>(dtype_bytes(dtype)), place.strides,
            dtype};
  const StridedEnd end = resolve(shapes_[tensor], place, box);
  return {tensor, end.data - shapes_[tensor].data, end.strides, end.dtype};
}

Copy Program::compile(const Move& move, const Item& item) const {
  const Plan& plan = schedule_->plan();
  return {
      end_of(move.src, src_tensor(move), plan.src_place(move, item.box), item.box, move.src_dtype),
      end_of(move.dst, dst_tensor(move), plan.dst_place(move, item.box), item.box, move.dst_dtype),
      move.wire(),
      move.op,
      item.box,
      item.offset_bytes};
}

void Program::add_buckets(const ProgramOptions& options) {
  const auto by_manner = [&](Rank src) {
    return std::ranges::find(options.readable, src) != options.readable.end();
  };
  for (const int32_t id : schedule_->incoming())
    add_parts(id, by_manner(schedule_->buckets()[id].src));
  const auto num_incoming = static_cast<int32_t>(parts_.size());
  for (const int32_t id : schedule_->outgoing()) add_parts(id, by_manner(rank_));
  const auto num_both = static_cast<int32_t>(parts_.size());
  for (size_t id = 0; reduces_ && id < schedule_->buckets().size(); ++id) {
    const Bucket& bucket = schedule_->buckets()[id];
    if (bucket.local() && bucket.dst == rank_) add_parts(static_cast<int32_t>(id), false);
  }
  for (int32_t i = 0; i < num_both; ++i) {
    const Part& part = parts_[i];
    (i < num_incoming ? incoming_ : outgoing_).push_back(i);
    by_name_[{part.src, part.dst, part.name}] = i;
  }
}

/// The parts of a bucket, in the order of their manners.
void Program::add_parts(int32_t id, bool by_manner) {
  const Bucket& bucket = schedule_->buckets()[id];
  const Table<Move>& moves = schedule_->moves();
  const bool contributes = bucket.step == 0 && reduces_;
  const bool whole = !by_manner || contributes || bucket.local();
  std::vector<Part> parts(kNumManners);
  for (const Item& item : bucket.items) {
    const Move& move = moves[item.move];
    const Manner manner = whole ? Manner::kPack : manner_of(schedule_->plan(), move, item);
    Part& part = parts[static_cast<size_t>(manner)];
    if (part.copies.empty())
      part = {
          .name = static_cast<uint32_t>(bucket.index) * kNumManners + static_cast<uint32_t>(manner),
          .src = bucket.src,
          .dst = bucket.dst,
          .step = bucket.step,
          .manner = manner,
          .plain = true,
          .placed = !contributes,
          .round = bucket.round,
          .feeds = bucket.feeds,
          .gate = bucket.gate,
          .copies = {}};
    Copy copy = compile(move, item);
    if (!whole)
      copy.offset_bytes = aligned(part.num_bytes, static_cast<int64_t>(dtype_bytes(copy.wire)));
    part.num_bytes = copy.offset_bytes + copy.wire_bytes();
    part.payload_bytes += copy.wire_bytes();
    part.plain = part.plain && move.src_dtype == move.dst_dtype && move.codec == Codec::kNone;
    if (bucket.dst == rank_)
      part.last_target = std::max(part.last_target, copy.dst.tensor - num_sources_);
    part.copies.push_back(std::move(copy));
  }
  for (Part& part : parts)
    if (!part.copies.empty()) parts_.push_back(std::move(part));
}

/// One for each gate of the schedule.
void Program::add_folds() {
  folds_.resize(schedule_->gates().size());
  for (int32_t i = 0; i < static_cast<int32_t>(parts_.size()); ++i) {
    const Part& part = parts_[i];
    if (part.feeds >= 0) folds_[part.feeds].parts.push_back(i);
    if (part.gate >= 0)
      (part.local() ? folds_[part.gate].kept : folds_[part.gate].outgoing).push_back(i);
  }
  for (Fold& fold : folds_) {
    std::ranges::sort(fold.parts, {}, [&](int32_t part) { return parts_[part].src; });
    for (const int32_t part : fold.parts)
      fold.pitch_bytes =
          std::max(fold.pitch_bytes, aligned(parts_[part].num_bytes, kContributionAlignment));
    add_boxes(fold);
  }
}

/// Equal offsets in the contributions to a fold are the same box.
void Program::add_boxes(Fold& fold) const {
  std::vector<int32_t> next(fold.parts.size(), 0);
  for (;;) {
    int64_t offset = INT64_MAX;
    for (size_t i = 0; i < next.size(); ++i) {
      const std::vector<Copy>& copies = parts_[fold.parts[i]].copies;
      if (next[i] < static_cast<int32_t>(copies.size()))
        offset = std::min(offset, copies[next[i]].offset_bytes);
    }
    if (offset == INT64_MAX) return;
    FoldBox box;
    for (size_t i = 0; i < next.size(); ++i) {
      const std::vector<Copy>& copies = parts_[fold.parts[i]].copies;
      if (next[i] < static_cast<int32_t>(copies.size()) && copies[next[i]].offset_bytes == offset)
        box.contributions.push_back({fold.parts[i], next[i]++});
    }
    fold.boxes.push_back(std::move(box));
  }
}

void Program::add_local_copies() {
  local_copies_.resize(num_targets());
  for (const int32_t index : schedule_->local_moves()) {
    const Move& move = schedule_->moves()[index];
    Copy copy = compile(move, {index, 0, move.box});
    local_copies_[copy.dst.tensor - num_sources_].push_back(std::move(copy));
  }
}

int32_t Program::find(Rank src, Rank dst, uint32_t name) const {
  const auto found = by_name_.find({src, dst, name});
  return found == by_name_.end() ? -1 : found->second;
}

std::string Program::describe(int32_t id) const {
  const Part& part = parts_[id];
  const bool here = part.dst == rank_;
  const Layout& layout = here || part.step == 1 ? dst_layout() : src_layout();
  const int32_t tensor = here ? part.copies.front().dst.tensor : part.copies.front().src.tensor;
  const int32_t first = layout.locals_of(rank_).first;
  const int32_t local = &layout == &dst_layout() ? tensor - num_sources_ : tensor;
  return str_cat("bucket ", part.name / kNumManners, "/", schedule_->buckets().size(), ", round ",
                 part.round, ", first tensor '", layout.name_of(layout.locals()[first + local]),
                 "'");
}

}  // namespace hybridengine
