#include "plan/plan.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/hash.h"

namespace hybridengine {

int64_t Move::num_bytes() const {
  return box.num_elems() * static_cast<int64_t>(dtype_bytes(wire()));
}

Plan::Plan(LayoutPtr src, LayoutPtr dst, Table<Move> moves)
    : src_(std::move(src)),
      dst_(std::move(dst)),
      moves_(std::move(moves)),
      certificate_(certify(*src_, *dst_, moves_)) {}

Plan::Plan(LayoutPtr src, LayoutPtr dst, Table<Move> moves, const Pairing& pairing)
    : src_(std::move(src)),
      dst_(std::move(dst)),
      moves_(std::move(moves)),
      certificate_(certify(*src_, *dst_, moves_, pairing)) {}

Place Plan::src_place(const Move& move, const Box& box) const {
  const Piece& piece = src_pieces(move)[move.src_piece];
  return place_within(piece.place, piece.box, box);
}

Place Plan::dst_place(const Move& move, const Box& box) const {
  const Piece& piece = dst_->pieces()[move.dst_piece];
  return place_within(piece.place, piece.box, box);
}

std::string Plan::to_string() const {
  std::map<std::pair<Rank, Rank>, std::pair<int64_t, int64_t>> pairs;  // moves, bytes
  for (const Move& move : moves_) {
    auto& [count, bytes] = pairs[{move.src, move.dst}];
    ++count;
    bytes += move.num_bytes();
  }
  std::string text = str_cat(src_->text(), " -> ", dst_->text(), "\n", certificate_.to_string());
  for (const auto& [pair, sums] : pairs)
    text += str_cat("rank ", pair.first, " -> rank ", pair.second,
                    pair.first == pair.second ? " (stays)" : "", ": ", sums.first, " moves, ",
                    sums.second, " bytes\n");
  return text;
}

bool Plan::operator==(const Plan& other) const {
  return *src_ == *other.src_ && *dst_ == *other.dst_ && moves_ == other.moves_;
}

namespace {

constexpr char kMagic[] = "hybridengine.plan";
constexpr uint32_t kVersion = 1;
constexpr size_t kMoveBytes = 5 * 4 + 5;  // without its box

void put_move(BlobWriter& writer, const Move& move) {
  for (const int32_t number : {move.tensor, move.src_piece, move.dst_piece, move.src, move.dst})
    writer.put(number);
  writer.put(move.op);
  writer.put(move.codec);
  writer.put(move.step);
  writer.put(move.src_dtype);
  writer.put(move.dst_dtype);
  writer.put<int32_t>(move.box.ndim);
  for (int dim = 0; dim < move.box.ndim; ++dim) {
    writer.put(move.box.start[dim]);
    writer.put(move.box.size[dim]);
  }
}

Move get_move(BlobReader& reader) {
  Move move;
  for (int32_t* number : {&move.tensor, &move.src_piece, &move.dst_piece, &move.src, &move.dst})
    *number = reader.get<int32_t>();
  const auto op = reader.get<uint8_t>();
  if (op >= kNumOps || reader.get<uint8_t>() != 0)
    throw UsageError("saved bytes hold a move with an unknown op or codec", "", "");
  move.op = static_cast<Op>(op);
  move.step = reader.get<uint8_t>();
  if (move.step > 1) throw UsageError("saved bytes hold a move of a step that no plan has", "", "");
  move.src_dtype = reader.get_dtype();
  move.dst_dtype = reader.get_dtype();
  move.box.ndim = reader.get<int32_t>();
  if (move.box.ndim < 0 || move.box.ndim > kMaxDims)
    throw UsageError("saved bytes hold a move with an impossible number of dims", "", "");
  for (int dim = 0; dim < move.box.ndim; ++dim) {
    move.box.start[dim] = reader.get<int64_t>();
    move.box.size[dim] = reader.get<int64_t>();
    // Larger numbers could wrap before check() compares them with the pieces.
    if (move.box.start[dim] < 0 || move.box.size[dim] < 0 ||
        move.box.start[dim] > INT64_MAX - move.box.size[dim])
      throw UsageError("saved bytes hold a move with an impossible box", "", "");
  }
  return move;
}

void check_move_indices(const Layout& src, const Layout& dst, const Move& move) {
  const auto fits = [](int32_t index, size_t count) {
    return index >= 0 && index < static_cast<int64_t>(count);
  };
  const Table<Piece>& src_pieces = move.step == 0 ? src.pieces() : dst.pieces();
  if (!fits(move.tensor, dst.spec().tensors().size()) || !fits(move.src_piece, src_pieces.size()) ||
      !fits(move.dst_piece, dst.pieces().size()))
    throw UsageError("saved bytes hold a move of a piece that is not there", "", "");
  if (!src_pieces[move.src_piece].box.contains(move.box) ||
      !dst.pieces()[move.dst_piece].box.contains(move.box))
    throw UsageError("saved bytes hold a move outside of its pieces", move.box.to_string(), "");
}

}  // namespace

Blob Plan::save() const {
  BlobWriter writer(kMagic, kVersion);
  writer.put_bytes(src_->save());
  writer.put_bytes(dst_->save());
  writer.put<uint64_t>(moves_.size());
  for (const Move& move : moves_) put_move(writer, move);
  return std::move(writer).finish();
}

uint64_t Plan::digest() const {
  BlobWriter writer;
  for (const Move& move : moves_) put_move(writer, move);
  Digest digest;
  digest.update_number(src_->digest());
  digest.update_number(dst_->digest());
  digest.update(std::move(writer).take());
  return digest.value();
}

PlanPtr Plan::load(std::string_view blob) {
  BlobReader reader(blob, kMagic, kVersion);
  auto src = std::make_shared<const Layout>(Layout::load(reader.get_bytes()));
  auto dst = std::make_shared<const Layout>(Layout::load(reader.get_bytes()));
  const auto num_moves = reader.get<uint64_t>();
  reader.check_count(num_moves, kMoveBytes);
  Table<Move> moves;
  int64_t bytes = 0;
  for (uint64_t i = 0; i < num_moves; ++i) {
    moves.push_back(get_move(reader));
    check_move_indices(*src, *dst, moves.back());
    if (__builtin_add_overflow(bytes, moves.back().num_bytes(), &bytes))
      throw UsageError("saved bytes hold more moves than 63 bits count bytes of", "", "");
  }
  reader.finish();
  auto plan = std::make_shared<const Plan>(std::move(src), std::move(dst), std::move(moves));
  plan->check();
  return plan;
}

}  // namespace hybridengine
