// Layouts as bytes.
#include "base/error.h"
#include "base/hash.h"
#include "layout/layout.h"

namespace hybridengine {
namespace {

constexpr char kMagic[] = "hybridengine.layout";
constexpr uint32_t kVersion = 2;
constexpr size_t kLocalBytes = 4 + 4 + 1 + 4;      // of a 0-dim local tensor
constexpr size_t kPieceBytes = 4 + 4 + 4 + 4 + 8;  // of a 0-dim piece

void put_dims(BlobWriter& writer, int ndim, const Dims& dims) {
  for (int dim = 0; dim < ndim; ++dim) writer.put(dims[dim]);
}

Dims get_dims(BlobReader& reader, int ndim) {
  Dims dims{};
  for (int dim = 0; dim < ndim; ++dim) dims[dim] = reader.get<int64_t>();
  return dims;
}

int get_ndim(BlobReader& reader) {
  const auto ndim = reader.get<int32_t>();
  if (ndim < 0 || ndim > kMaxDims)
    throw UsageError("saved bytes hold a box with an impossible number of dims", str_cat(ndim), "");
  return ndim;
}

LocalTensor get_local(BlobReader& reader) {
  LocalTensor local;
  local.rank = reader.get<Rank>();
  local.name = reader.get<int32_t>();
  local.dtype = reader.get_dtype();
  const int ndim = get_ndim(reader);
  const Dims sizes = get_dims(reader, ndim);
  local.shape = Shape(std::span(sizes.data(), static_cast<size_t>(ndim)));
  local.shape.num_elems();  // throws where it does not fit
  return local;
}

Piece get_piece(BlobReader& reader) {
  Piece piece;
  piece.tensor = reader.get<int32_t>();
  piece.local = reader.get<int32_t>();
  piece.rank = reader.get<Rank>();
  piece.box.ndim = get_ndim(reader);
  piece.box.start = get_dims(reader, piece.box.ndim);
  piece.box.size = get_dims(reader, piece.box.ndim);
  piece.place.offset_elems = reader.get<int64_t>();
  piece.place.strides = get_dims(reader, piece.box.ndim);
  return piece;
}

}  // namespace

Blob Layout::save() const {
  BlobWriter writer(kMagic, kVersion);
  writer.put_text(text_);
  writer.put_bytes(spec_->save());
  writer.put(op_);
  writer.put_all(std::span<const Rank>(ranks_));
  writer.put<uint64_t>(names_.size());
  for (const std::string& name : names_) writer.put_text(name);
  writer.put<uint64_t>(locals_.size());
  for (const LocalTensor& local : locals_) {
    writer.put(local.rank);
    writer.put(local.name);
    writer.put(local.dtype);
    writer.put<int32_t>(local.shape.ndim);
    put_dims(writer, local.shape.ndim, local.shape.size);
  }
  writer.put<uint64_t>(pieces_.size());
  for (const Piece& piece : pieces_) {
    writer.put(piece.tensor);
    writer.put(piece.local);
    writer.put(piece.rank);
    writer.put<int32_t>(piece.box.ndim);
    put_dims(writer, piece.box.ndim, piece.box.start);
    put_dims(writer, piece.box.ndim, piece.box.size);
    writer.put(piece.place.offset_elems);
    put_dims(writer, piece.box.ndim, piece.place.strides);
  }
  return std::move(writer).finish();
}

uint64_t Layout::digest() const { return digest_of(save()); }

Layout Layout::load(std::string_view blob) {
  BlobReader reader(blob, kMagic, kVersion);
  std::string text = reader.get_text();
  auto spec = std::make_shared<const Spec>(Spec::load(reader.get_bytes()));
  const auto op = reader.get<uint8_t>();
  if (op >= kNumOps) throw UsageError("saved bytes hold a layout of an unknown op", "", "");
  std::vector<Rank> ranks = reader.get_all<Rank>();
  const auto num_names = reader.get<uint64_t>();
  reader.check_count(num_names, sizeof(uint64_t));
  std::vector<std::string> names(num_names);
  for (std::string& name : names) name = reader.get_text();
  const auto num_locals = reader.get<uint64_t>();
  reader.check_count(num_locals, kLocalBytes);
  Table<LocalTensor> locals;
  for (uint64_t i = 0; i < num_locals; ++i) locals.push_back(get_local(reader));
  const auto num_pieces = reader.get<uint64_t>();
  reader.check_count(num_pieces, kPieceBytes);
  Table<Piece> pieces;
  for (uint64_t i = 0; i < num_pieces; ++i) pieces.push_back(get_piece(reader));
  reader.finish();
  Layout layout(std::move(text), std::move(spec), std::move(ranks), std::move(names),
                std::move(locals), std::move(pieces));
  layout.op_ = static_cast<Op>(op);
  for (const TensorInfo& info : layout.spec().tensors()) check_reducible(layout.op_, info.dtype);
  layout.check();
  return layout;
}

}  // namespace hybridengine
