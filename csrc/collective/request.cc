#include "collective/request.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "collective/flat.h"

namespace hybridengine {
namespace {

constexpr std::array<const char*, 5> kKindNames{"all_reduce", "reduce_scatter", "all_gather",
                                                "broadcast", "barrier"};
constexpr size_t kNamedTensors = 8;    // in a description
constexpr size_t kMaxWords = 8 << 10;  // bytes of one
/// Entry of a rank that contributes at once. Every rank reads the entries of all: what is larger is
/// combined by its owners.
constexpr size_t kMostPosted = 64 << 10;

struct Header {
  uint64_t digest = 0;
  int64_t bucket_bytes = 0;
  uint32_t contiguous = 0;
  uint32_t failed = 0;
};

int64_t num_bytes(std::span<const TensorMemory> tensors) {
  int64_t bytes = 0;
  for (const TensorMemory& tensor : tensors)
    bytes += tensor.shape.num_elems() * static_cast<int64_t>(dtype_bytes(tensor.dtype));
  return bytes;
}

uint64_t digest(const Request& request) {
  Digest digest;
  digest.update_number(request.kind);
  digest.update_number(request.op);
  digest.update_number(request.root);
  digest.update_number(request.bucket_bytes);
  for (const TensorMemory& tensor : request.logical()) {
    digest.update_number(tensor.dtype);
    digest.update_number(tensor.shape.ndim);
    digest.update(tensor.shape.size.data(), sizeof(int64_t) * tensor.shape.ndim);
  }
  return digest.value();
}

bool all_contiguous(const Request& request) {
  for (const auto* side : {&request.inputs, &request.outputs})
    for (const TensorMemory& tensor : *side)
      if (!is_contiguous(tensor)) return false;
  return true;
}

/// What this rank contributes, one tensor after the other.
size_t put_payload(const Request& request, Rank rank, std::span<std::byte> room) {
  if (request.kind == Kind::kBroadcast && rank != request.root) return 0;
  size_t used = 0;
  for (const TensorMemory& tensor : request.inputs) {
    const FlatMemory flat(tensor);
    flat.read(0, flat.num_elems(), room.data() + used);
    used += flat.num_elems() * flat.elem_bytes();
  }
  return used;
}

std::string words(std::span<const std::byte> entry) {
  return {reinterpret_cast<const char*>(entry.data()), entry.size()};
}

/// All ranks have seen that something is wrong: each says what it asked for, or what is wrong.
UsageError disagreement(Communicator& comm, const Request& request,
                        std::span<const Header> headers) {
  std::string mine = request.error.empty() ? request.to_string() : request.error;
  mine.resize(std::min(mine.size(), kMaxWords));
  std::memcpy(comm.lane_entry().data(), mine.data(), mine.size());
  const auto texts = comm.exchange(mine.size(), "saying what differs");
  for (Rank rank = 0; rank < comm.world(); ++rank)
    if (headers[rank].failed != 0)
      return UsageError(str_cat("rank ", rank, " cannot take part in a collective"),
                        words(texts[rank]), "");
  Rank other = 1;
  while (headers[other].digest == headers[0].digest) ++other;
  return UsageError(
      "ranks ask for different collectives",
      str_cat("rank 0: ", words(texts[0]), "; rank ", other, ": ", words(texts[other])),
      "Make the same calls in the same order, with tensors of the same shapes and types.");
}

}  // namespace

std::string Request::to_string() const {
  std::string text = kKindNames[static_cast<size_t>(kind)];
  if (op != Op::kCopy) text += str_cat(" ", op_name(op));
  if (kind == Kind::kBroadcast) text += str_cat(" from rank ", root);
  if (kind == Kind::kBarrier) return text;
  text += str_cat(" of ", logical().size(), logical().size() == 1 ? " tensor" : " tensors");
  for (size_t i = 0; i < std::min(logical().size(), kNamedTensors); ++i)
    text += str_cat(i == 0 ? ": " : ", ", dtype_name(logical()[i].dtype), " ",
                    logical()[i].shape.to_string());
  if (logical().size() > kNamedTensors) text += ", ...";
  if (bucket_bytes > 0) text += str_cat(", buckets of ", bucket_bytes, " bytes");
  return text;
}

void check_request(Request& request, int32_t world) {
  const auto wrong = [&](size_t index, const std::string& what) {
    request.error = str_cat("tensor ", index, ": ", what);
  };
  if (request.bucket_bytes < 0)
    request.error = str_cat("bucket_bytes is ", request.bucket_bytes, ". Use a positive size.");
  if (request.kind == Kind::kBroadcast && (request.root < 0 || request.root >= world))
    request.error =
        str_cat("src is rank ", request.root, " of ", world, " ranks. Use 0 to ", world - 1, ".");
  if (request.inputs.size() != request.outputs.size())
    request.error = str_cat(request.outputs.size(), " outputs, ", request.inputs.size(),
                            " inputs. Give as many of both.");
  for (size_t i = 0; i < request.inputs.size() && request.error.empty(); ++i) {
    const TensorMemory& input = request.inputs[i];
    const TensorMemory& output = request.outputs[i];
    const TensorMemory& whole = request.logical()[i];
    const TensorMemory& part = request.kind == Kind::kAllGather ? input : output;
    const bool cut = request.kind == Kind::kAllGather || request.kind == Kind::kReduceScatter;
    Shape expected = whole.shape;
    if (cut && (whole.shape.ndim == 0 || whole.shape.size[0] % world != 0))
      return wrong(
          i, str_cat(whole.shape.to_string(), " does not divide by ", world, " ranks in dim 0."));
    if (cut) expected.size[0] /= world;
    if (part.shape != expected)
      return wrong(i, str_cat("the part of a rank is ", part.shape.to_string(), ", ",
                              whole.shape.to_string(), " on ", world, " ranks needs ",
                              expected.to_string(), "."));
    if (input.dtype != output.dtype)
      return wrong(i, str_cat("the input is ", dtype_name(input.dtype), ", the output ",
                              dtype_name(output.dtype), ". Use one type."));
    try {
      check_reducible(request.op, input.dtype);
    } catch (const UsageError& error) {
      return wrong(i, error.what());
    }
  }
}

Agreement agree(Communicator& comm, const Request& request, int64_t auto_bucket_bytes) {
  const std::span<std::byte> room = comm.lane_entry();
  Header mine{digest(request), request.bucket_bytes > 0 ? request.bucket_bytes : auto_bucket_bytes,
              all_contiguous(request), !request.error.empty()};
  std::memcpy(room.data(), &mine, sizeof mine);
  size_t used = sizeof mine;
  const bool posted =
      mine.failed == 0 && sizeof mine + static_cast<size_t>(num_bytes(request.inputs)) <=
                              std::min(kMostPosted, room.size());
  if (posted) used += put_payload(request, comm.rank(), room.subspan(sizeof mine));
  const auto entries = comm.exchange(used, "agreeing on a collective");
  std::vector<Header> headers(entries.size());
  bool same = true, contiguous = true;
  for (size_t rank = 0; rank < entries.size(); ++rank) {
    std::memcpy(&headers[rank], entries[rank].data(), sizeof(Header));
    same = same && headers[rank].failed == 0 && headers[rank].digest == headers[0].digest;
    contiguous = contiguous && headers[rank].contiguous != 0;
  }
  Agreement agreement{mine.digest, contiguous, headers[0].bucket_bytes, {}, {}};
  if (!same) {
    agreement.refusal = disagreement(comm, request, headers);
    return agreement;
  }
  if (posted)
    for (const auto& entry : entries) agreement.payloads.push_back(entry.subspan(sizeof(Header)));
  return agreement;
}

}  // namespace hybridengine
