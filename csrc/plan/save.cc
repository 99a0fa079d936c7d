// Plans as bytes: the layouts, the cuts and the choices. What follows from the layouts alone (which
// tensors are of one kind, who holds what) is worked out again.
#include "base/error.h"
#include "base/hash.h"
#include "plan/plan.h"

namespace hybridengine {
namespace {

constexpr char kMagic[] = "hybridengine.plan";
constexpr uint32_t kVersion = 2;
constexpr size_t kCutBytes = 4 + 4;  // of 0 dims

void put_box(BlobWriter& writer, const Box& box) {
  writer.put<int32_t>(box.ndim);
  for (int dim = 0; dim < box.ndim; ++dim) {
    writer.put(box.start[dim]);
    writer.put(box.size[dim]);
  }
}

Box get_box(BlobReader& reader, const Box& within) {
  Box box;
  box.ndim = reader.get<int32_t>();
  if (box.ndim != within.ndim)
    throw UsageError("saved bytes hold a cut with an impossible number of dims", "", "");
  for (int dim = 0; dim < box.ndim; ++dim) {
    const auto start = box.start[dim] = reader.get<int64_t>();
    const auto size = box.size[dim] = reader.get<int64_t>();
    // Larger numbers could wrap before check() compares boxes.
    if (start < 0 || size < 0 || start > within.end(dim) || size > within.end(dim) - start)
      throw UsageError("saved bytes hold a cut outside of its source", within.to_string(), "");
  }
  return box;
}

std::vector<Slice> get_cutting(BlobReader& reader, const std::vector<Holding>& sources) {
  const auto num_cuts = reader.get<uint64_t>();
  reader.check_count(num_cuts, kCutBytes);
  std::vector<Slice> cuts;
  for (uint64_t i = 0; i < num_cuts; ++i) {
    const auto source = reader.get<int32_t>();
    if (source < 0 || source >= static_cast<int64_t>(sources.size()))
      throw UsageError("saved bytes hold a cut of a source that is not there", "", "");
    cuts.push_back({get_box(reader, sources[source].box), source});
  }
  return cuts;
}

void get_cuts(BlobReader& reader, std::span<const Piece> pieces, Pattern& pattern) {
  const auto num_cuttings = reader.get<uint64_t>();
  reader.check_count(num_cuttings, sizeof(uint64_t));
  for (uint64_t i = 0; i < num_cuttings; ++i)
    pattern.cuttings.push_back(get_cutting(reader, pattern.sources));
  pattern.cutting_of = reader.get_all<int32_t>();
  bool good = pattern.cutting_of.size() == pieces.size();
  for (const int32_t cutting : pattern.cutting_of)
    good = good && cutting >= 0 && cutting < static_cast<int64_t>(num_cuttings);
  if (!good) throw UsageError("saved bytes hold other pieces than their layout", "", "");
}

/// The rows of the sets, from what is asked of them.
std::vector<int64_t> row_bytes(const Pairing& pairing, const std::vector<Pattern>& patterns,
                               int32_t num_sets) {
  std::vector<int64_t> bytes(num_sets, 0);
  for (size_t i = 0; i < patterns.size(); ++i)
    for (const SetDemand& demand : patterns[i].demands.sets)
      if (int64_t all = 0; __builtin_mul_overflow(demand.bytes, pairing.kinds[i].count, &all) ||
                           __builtin_add_overflow(bytes[demand.set], all, &bytes[demand.set]))
        throw UsageError("saved bytes hold more moves than 63 bits count bytes of", "", "");
  return bytes;
}

void check_number(BlobReader& reader, size_t expected) {
  if (reader.get<uint64_t>() != expected)
    throw UsageError("saved bytes hold other kinds of tensors or holders than their layouts", "",
                     "");
}

/// That they end just where demands do is for check().
void get_ends(BlobReader& reader, const std::vector<int64_t>& bytes, HolderSets& sets) {
  check_number(reader, static_cast<size_t>(sets.size()));
  for (int32_t set = 0; set < sets.size(); ++set) {
    std::vector<int64_t> ends = reader.get_all<int64_t>();
    bool good = ends.size() == sets.ranks(set).size() && ends.back() >= bytes[set];
    for (size_t i = 0; good && i < ends.size(); ++i) good = ends[i] >= (i == 0 ? 0 : ends[i - 1]);
    if (!good)
      throw UsageError("saved bytes hold shares of holders that are not those of their demands",
                       str_cat("set ", set), "");
    sets.set_ends(set, std::move(ends));
  }
}

}  // namespace

/// All but the layouts.
void Plan::put(BlobWriter& writer) const {
  // Of what is combined the ends say all.
  writer.put<uint64_t>(reduces() ? 0 : patterns_.size());
  for (const Pattern& pattern : patterns_) {
    if (reduces()) break;
    writer.put<uint64_t>(pattern.cuttings.size());
    for (const std::vector<Slice>& cutting : pattern.cuttings) {
      writer.put<uint64_t>(cutting.size());
      for (const Slice& cut : cutting) {
        writer.put(cut.source);
        put_box(writer, cut.box);
      }
    }
    writer.put_all(std::span<const int32_t>(pattern.cutting_of));
  }
  writer.put<uint64_t>(sets_.size());
  for (int32_t set = 0; set < sets_.size(); ++set)
    writer.put_all(std::span<const int64_t>(sets_.ends(set)));
}

Blob Plan::save() const {
  BlobWriter writer(kMagic, kVersion);
  writer.put_bytes(src_->save());
  writer.put_bytes(dst_->save());
  put(writer);
  return std::move(writer).finish();
}

uint64_t Plan::digest() const {
  BlobWriter writer;
  put(writer);
  Digest digest;
  digest.update_number(src_->digest());
  digest.update_number(dst_->digest());
  digest.update(std::move(writer).take());
  return digest.value();
}

bool Plan::operator==(const Plan& other) const {
  if (*src_ != *other.src_ || *dst_ != *other.dst_) return false;
  BlobWriter mine, theirs;
  put(mine);
  other.put(theirs);
  return std::move(mine).take() == std::move(theirs).take();
}

PlanPtr Plan::load(std::string_view blob) {
  BlobReader reader(blob, kMagic, kVersion);
  auto src = std::make_shared<const Layout>(Layout::load(reader.get_bytes()));
  auto dst = std::make_shared<const Layout>(Layout::load(reader.get_bytes()));
  Pairing pairing = pair_tensors(*src, *dst);
  HolderSets sets;
  std::vector<Pattern> patterns;
  const bool combined = src->op() != Op::kCopy;
  check_number(reader, combined ? 0 : pairing.kinds.size());
  for (const PairKind& kind : pairing.kinds) {
    if (combined) {
      patterns.push_back(make_combined(*src, *dst, kind, sets));
      continue;
    }
    const Dtype src_dtype = src->spec().tensors()[kind.src_tensor].dtype;
    const Dtype dst_dtype = dst->spec().tensors()[kind.dst_tensor].dtype;
    Pattern& pattern = patterns.emplace_back();
    pattern.demands.elem_bytes =
        static_cast<int64_t>(dtype_bytes(wire_dtype(src_dtype, dst_dtype)));
    pattern.sources = find_sources(*src, kind.src_tensor, sets);
    get_cuts(reader, dst->pieces_of(kind.dst_tensor), pattern);
    count_demands(pattern, dst->pieces_of(kind.dst_tensor), sets);
  }
  get_ends(reader, row_bytes(pairing, patterns, sets.size()), sets);
  reader.finish();
  auto plan = std::make_shared<const Plan>(std::move(src), std::move(dst), std::move(pairing),
                                           std::move(patterns), std::move(sets));
  plan->check();
  return plan;
}

}  // namespace hybridengine
