#include "collective/collectives.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "collective/all_reduce.h"
#include "collective/flat.h"
#include "collective/layouts.h"
#include "comm/call_scope.h"
#include "device/reduce.h"
#include "engine/run.h"
#include "plan/plan.h"

namespace hybridengine {
namespace {

constexpr size_t kMaxPrepared = 64;

TensorMemory flattened(const TensorMemory& tensor) {
  TensorMemory flat = tensor;
  flat.shape = Shape();
  flat.shape.ndim = 1;
  flat.shape.size[0] = tensor.shape.num_elems();
  flat.strides = {1};
  return flat;
}

std::vector<TensorMemory> flattened(const std::vector<TensorMemory>& tensors, bool flat) {
  if (!flat) return tensors;
  std::vector<TensorMemory> result;
  for (const TensorMemory& tensor : tensors) result.push_back(flattened(tensor));
  return result;
}

/// Contiguous `bytes` into a tensor of any strides.
void put(const std::byte* bytes, const TensorMemory& tensor) {
  const FlatMemory flat(tensor);
  flat.write(0, flat.num_elems(), bytes);
}

}  // namespace

void Collectives::run(const Request& request) {
  CallScope call(comm_);
  const Agreement agreement = call.run([&] { return agree(comm_, request, auto_bucket_bytes_); });
  if (agreement.refusal) call.withdraw(*agreement.refusal);
  call.run([&] { perform(request, agreement); });
  call.leave();
}

void Collectives::perform(const Request& request, const Agreement& agreement) {
  if (request.kind == Kind::kBarrier) return;
  if (!agreement.payloads.empty())
    run_small(request, agreement);
  else if (request.kind == Kind::kAllReduce && comm_.fabric().caps().maps)
    AllReduce(comm_, request.inputs, request.op, agreement.bucket_bytes).run(agreement.digest);
  else
    run_large(request, agreement);
}

void Collectives::run_small(const Request& request, const Agreement& agreement) const {
  const std::vector<std::span<const std::byte>>& payloads = agreement.payloads;
  std::vector<const std::byte*> srcs;
  std::vector<std::byte> scratch;
  size_t offset = 0;  // in a payload
  for (size_t i = 0; i < request.outputs.size(); ++i) {
    const TensorMemory& output = request.outputs[i];
    const auto elem_bytes = dtype_bytes(output.dtype);
    const size_t in_bytes = request.inputs[i].shape.num_elems() * elem_bytes;
    const size_t out_bytes = output.shape.num_elems() * elem_bytes;
    if (request.kind == Kind::kBroadcast) {
      if (comm_.rank() != request.root && out_bytes > 0)
        put(payloads[request.root].data() + offset, output);
    } else if (request.kind == Kind::kAllGather) {
      scratch.resize(out_bytes);
      for (size_t rank = 0; rank < payloads.size() && in_bytes > 0; ++rank)
        std::memcpy(scratch.data() + rank * in_bytes, payloads[rank].data() + offset, in_bytes);
      if (out_bytes > 0) put(scratch.data(), output);
    } else if (out_bytes > 0) {
      const size_t first =
          request.kind == Kind::kReduceScatter ? comm_.rank() * out_bytes : size_t{0};
      srcs.clear();
      for (const auto& payload : payloads) srcs.push_back(payload.data() + offset + first);
      const bool whole = is_contiguous(output);
      if (!whole) scratch.resize(out_bytes);
      const int divisor = request.op == Op::kMean ? comm_.world() : 1;
      fold(reduce_op(request.op), output.dtype, srcs, divisor, whole ? output.data : scratch.data(),
           output.shape.num_elems());
      if (!whole) put(scratch.data(), output);
    }
    offset += in_bytes;
  }
}

Collectives::Prepared& Collectives::prepared_for(const Request& request,
                                                 const Agreement& agreement) {
  const auto found = std::find_if(prepared_.begin(), prepared_.end(), [&](const Prepared& each) {
    return each.digest == agreement.digest && each.flat == agreement.contiguous &&
           each.bucket_bytes == agreement.bucket_bytes;
  });
  if (found != prepared_.end()) {
    prepared_.splice(prepared_.begin(), prepared_, found);
    return prepared_.front();
  }
  const SpecPtr spec = spec_of(request, agreement.contiguous);
  std::vector<Rank> all(comm_.world());
  std::iota(all.begin(), all.end(), 0);
  std::vector<Rank> receivers = all;
  std::erase(receivers, request.root);
  PlanPtr plan;
  if (request.kind == Kind::kAllReduce)
    plan = make_plan(whole_on(spec, all)->partial(request.op), whole_on(spec, all));
  else if (request.kind == Kind::kReduceScatter)
    plan = make_plan(whole_on(spec, all)->partial(request.op), chunks_on(spec, comm_.world()));
  else if (request.kind == Kind::kAllGather)
    plan = make_plan(chunks_on(spec, comm_.world()), whole_on(spec, all));
  else
    plan = make_plan(whole_on(spec, {request.root}), whole_on(spec, receivers));
  const SchedulePtr schedule = make_schedule(plan, comm_.rank(), agreement.bucket_bytes);
  RunOptions options;
  options.plan = schedule->digest();
  if (agreement.contiguous) options.readable = all;
  Prepared prepared{agreement.digest, agreement.contiguous, agreement.bucket_bytes,
                    std::make_unique<Routine>(schedule, std::move(options))};
  prepared_.push_front(std::move(prepared));
  if (prepared_.size() > kMaxPrepared) prepared_.pop_back();
  return prepared_.front();
}

void Collectives::run_large(const Request& request, const Agreement& agreement) {
  if (comm_.world() == 1 && request.kind == Kind::kBroadcast) return;
  Prepared& prepared = prepared_for(request, agreement);
  const bool root = comm_.rank() == request.root;
  std::vector<TensorMemory> src, dst;
  if (request.kind != Kind::kBroadcast || root) src = flattened(request.inputs, prepared.flat);
  if (request.kind != Kind::kBroadcast || !root) dst = flattened(request.outputs, prepared.flat);
  Run(comm_, *prepared.routine, std::move(src), std::move(dst), {}).advance();
}

}  // namespace hybridengine
