// The begin of a run: which way each part goes, and what is said at once.
#include <algorithm>

#include "base/error.h"
#include "engine/run.h"

namespace hybridengine {

Run::Run(Communicator& comm, Routine& routine, std::vector<TensorMemory> src,
         std::vector<TensorMemory> dst, const std::vector<int32_t>& aliased)
    : comm_(comm),
      routine_(routine),
      memory_(routine, tensors_of(routine, std::move(src), std::move(dst))),
      program_(memory_.program()),
      copier_(comm),
      flow_(comm),
      ledger_(program_, routine.options(), aliased),
      started_at_(std::chrono::steady_clock::now()) {
  if (program_.reduces() && routine_.streaming())
    throw UsageError("a partial layout cannot be streamed", program_.src_layout().text(),
                     "Reduce into tensors of your own: leave the stream, or the partial layout.");
  if (caps().payload && !routine_.streaming())
    segment_ = segment_of(program_.dst_layout(), comm_.rank(), memory_.targets());
  line_up();
}

/// Folds come to the line before anything else does: see the top of run.h.
void Run::line_up() {
  flow_.add_line(kSlots);
  for (const Fold& fold : program_.folds()) {
    std::vector<int32_t> others = fold.parts;
    std::erase_if(others, [&](int32_t part) { return part_of(part).local(); });
    flow_.add_gate(std::move(others), kLine, static_cast<size_t>(fold.pitch_bytes));
  }
  const uint64_t plan = routine_.options().plan;
  for (const int32_t id : program_.incoming()) {
    const Part& part = part_of(id);
    const Flow::Way way = way_of(id);
    flow_.expect(id, {part.src, plan, part.name}, way);
    if (way == Flow::Way::kSlot && part.feeds < 0)
      flow_.join(kLine, id, static_cast<size_t>(part.num_bytes));
  }
  for (const int32_t id : program_.outgoing())
    flow_.promise(id, {part_of(id).dst, plan, part_of(id).name}, part_of(id).gate);
  flow_.reserve();
  reserve_rooms();
  report_.staging_bytes = static_cast<int64_t>(flow_.slots().region_bytes());
}

/// For what is packed before it is put.
void Run::reserve_rooms() {
  int64_t largest = 0;
  for (const int32_t id : program_.outgoing())
    if (copier_.is_put_to(part_of(id).dst)) largest = std::max(largest, part_of(id).num_bytes);
  copier_.reserve_rooms(static_cast<size_t>(largest));
}

Flow::Way Run::way_of(int32_t id) const {
  const Part& part = part_of(id);
  if (part.feeds >= 0) return Flow::Way::kSlot;
  if (goes_into_segment(part)) return Flow::Way::kPlace;
  if (part.manner == Manner::kPack || !copier_.reaches(part.src)) return Flow::Way::kSlot;
  if (part.manner == Manner::kWrite) return Flow::Way::kPlace;
  // The source does not say that it may be read: see routine.h.
  return routine_.in_place()[id] ? Flow::Way::kSlot : Flow::Way::kRead;
}

/// What is converted has no digest that both ends could take where it lies, and is not put as it
/// is.
bool Run::goes_into_segment(const Part& part) const {
  return segment_ && part.placed &&
         (part.plain || (!copier_.is_put_to(part.src) && !routine_.options().verify));
}

void Run::start() {
  started_ = true;
  const bool reached = caps().pull && !routine_.streaming();
  // Tensors that lie in a segment are found there, and need no addresses.
  if (reached)
    routine_.tables().set_own(program_.reduces() || !segment_ ? memory_.tensors()
                                                              : memory_.sources());
  grant_places();
  // That a part may be read: the destination may still grant another way.
  for (const int32_t id : program_.outgoing())
    if (reached && part_of(id).gate < 0) announce_ready(id);
}

/// Grants what is put into its final places by its source.
void Run::grant_places() {
  for (const int32_t id : program_.incoming()) {
    const Part& part = part_of(id);
    const bool in_place = flow_.way_of(id) == Flow::Way::kPlace;
    if (part.feeds < 0) routine_.in_place()[id] = in_place;
    if (!in_place) continue;
    const bool into_segment = goes_into_segment(part);
    if (!into_segment) tell_addresses(part.src);
    flow_.grant_place(id, into_segment ? segment_ : nullptr,
                      into_segment ? 0 : routine_.tables().digest());
  }
}

void Run::announce_ready(int32_t id) {
  const Part& part = part_of(id);
  if (part.manner != Manner::kRead || routine_.in_place()[id]) return;
  tell_addresses(part.dst);
  const bool verify = routine_.options().verify;
  flow_.say_ready(id, routine_.tables().digest(),
                  verify ? memory_.digest_of_source(part, nullptr) : 0);
}

void Run::tell_addresses(Rank peer) {
  const Blob* const table = routine_.tables().news_for(peer);
  if (table == nullptr) return;
  Message part;
  part.kind = MessageKind::kAddresses;
  part.plan = routine_.options().plan;
  part.part.total_bytes = table->size();
  for (; part.part.offset < table->size(); part.part.offset += part.text.size()) {
    part.text = table->substr(part.part.offset, kMaxTextBytes);
    comm_.send(peer, part);
  }
}

}  // namespace hybridengine
