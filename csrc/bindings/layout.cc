#include "layout/layout.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"
#include "layout/owners.h"
#include "layout/share.h"
#include "layout/subset.h"
#include "layout/update.h"

namespace py = pybind11;

namespace hybridengine {
namespace {

using TensorRow = std::tuple<std::string, std::vector<int64_t>, std::string>;
using LocalRow = std::tuple<Rank, std::string, std::vector<int64_t>, std::string>;
using PieceRow = std::tuple<std::string, Rank, std::string, std::vector<int64_t>,
                            std::vector<int64_t>, int64_t, std::vector<int64_t>>;

std::shared_ptr<const Spec> make_spec(const std::vector<TensorRow>& rows,
                                      std::vector<std::pair<std::string, std::string>> aliases) {
  std::vector<TensorInfo> tensors;
  tensors.reserve(rows.size());
  for (const auto& [name, shape, dtype] : rows)
    tensors.push_back({name, Shape(shape), parse_dtype(dtype)});
  return std::make_shared<const Spec>(std::move(tensors), std::move(aliases));
}

CutKind parse_cut_kind(const std::string& kind) {
  if (kind == "chunk") return CutKind::kChunk;
  if (kind == "even") return CutKind::kEven;
  if (kind == "units") return CutKind::kUnits;
  if (kind == "padded") return CutKind::kPadded;
  throw UsageError(str_cat("'", kind, "' is not a kind of cut"), "",
                   "Use chunk, even, units or padded.");
}

TensorRule make_tensor_rule(std::string from, std::string to, int32_t slot, int cat_dim,
                            std::vector<Cut> cuts,
                            const std::vector<std::tuple<int, int32_t, int32_t>>& where,
                            int layer_axis) {
  TensorRule rule{std::move(from), std::move(to), slot, cat_dim, std::move(cuts), {}, layer_axis};
  for (const auto& [axis, begin, end] : where) rule.where.push_back({axis, begin, end});
  return rule;
}

Mesh make_mesh(const std::vector<std::pair<std::string, int32_t>>& axes, std::vector<Rank> ranks) {
  Mesh mesh;
  for (const auto& [name, size] : axes) mesh.axes.push_back({name, size});
  mesh.ranks = std::move(ranks);
  mesh.num_positions();
  return mesh;
}

/// By hand: local tensors and pieces by name.
LayoutPtr make_layout(std::string text, const SpecPtr& spec, std::vector<Rank> ranks,
                      std::vector<LocalRow> local_rows, const std::vector<PieceRow>& piece_rows) {
  std::stable_sort(local_rows.begin(), local_rows.end(), [](const LocalRow& a, const LocalRow& b) {
    return std::get<0>(a) < std::get<0>(b);
  });
  std::vector<std::string> names;
  Table<LocalTensor> locals;
  std::map<std::string, int32_t> name_index;
  std::map<std::pair<Rank, std::string>, int32_t> local_index;
  for (const auto& [rank, name, shape, dtype] : local_rows) {
    const auto [entry, fresh] = name_index.emplace(name, static_cast<int32_t>(names.size()));
    if (fresh) names.push_back(name);
    if (!local_index.emplace(std::pair(rank, name), static_cast<int32_t>(locals.size())).second)
      throw UsageError("a rank has two local tensors of one name",
                       str_cat("'", name, "', rank ", rank), "");
    locals.push_back({rank, entry->second, parse_dtype(dtype), Shape(shape)});
  }
  Table<Piece> pieces;
  for (const auto& [tensor, rank, local, start, size, offset, strides] : piece_rows) {
    const auto found = local_index.find({rank, local});
    if (spec->find(tensor) < 0 || found == local_index.end())
      throw UsageError("a piece names a tensor or local tensor that is not there",
                       str_cat("'", tensor, "' in '", local, "' of rank ", rank), "");
    Piece piece{spec->find(tensor), found->second, rank, Box(Shape(size)), {offset, {}}};
    if (start.size() != size.size() || strides.size() != size.size())
      throw UsageError("a piece's start, size and strides differ in length", tensor, "");
    std::copy(start.begin(), start.end(), piece.box.start.begin());
    std::copy(strides.begin(), strides.end(), piece.place.strides.begin());
    pieces.push_back(piece);
  }
  std::sort(ranks.begin(), ranks.end());
  auto layout = std::make_shared<Layout>(std::move(text), spec, std::move(ranks), std::move(names),
                                         std::move(locals), std::move(pieces));
  layout->check();
  return layout;
}

py::list locals_of(const Layout& layout, Rank rank) {
  py::list rows;
  const auto [begin, end] = layout.locals_of(rank);
  for (int32_t i = begin; i < end; ++i) {
    const LocalTensor& local = layout.locals()[i];
    rows.append(py::make_tuple(layout.name_of(local), to_tuple(local.shape.ndim, local.shape.size),
                               dtype_name(local.dtype)));
  }
  return rows;
}

py::list pieces_of(const Layout& layout, Rank rank) {
  py::list rows;
  for (const Piece& piece : layout.pieces())
    if (piece.rank == rank)
      rows.append(py::make_tuple(
          layout.spec().tensors()[piece.tensor].name, layout.name_of(layout.locals()[piece.local]),
          to_tuple(piece.box.ndim, piece.box.start), to_tuple(piece.box.ndim, piece.box.size),
          piece.place.offset_elems, to_tuple(piece.box.ndim, piece.place.strides)));
  return rows;
}

std::vector<std::string> padded_of(const Layout& layout, Rank rank) {
  const auto [begin, end] = layout.locals_of(rank);
  std::vector<int64_t> missing;
  for (int32_t i = begin; i < end; ++i) missing.push_back(layout.locals()[i].shape.num_elems());
  for (const Piece& piece : layout.pieces())
    if (piece.rank == rank) missing[piece.local - begin] -= piece.box.num_elems();
  std::vector<std::string> names;
  for (int32_t i = begin; i < end; ++i)
    if (missing[i - begin] > 0) names.push_back(layout.name_of(layout.locals()[i]));
  return names;
}

void bind_spec(py::module_& module) {
  py::class_<Spec, std::shared_ptr<Spec>>(module, "Spec", "The logical tensors of a model.")
      .def(py::init([](const std::vector<TensorRow>& tensors,
                       std::vector<std::pair<std::string, std::string>> aliases) {
             return std::const_pointer_cast<Spec>(make_spec(tensors, std::move(aliases)));
           }),
           py::arg("tensors"),
           py::arg("aliases") = std::vector<std::pair<std::string, std::string>>{})
      .def_property_readonly(
          "tensors",
          [](const Spec& spec) {
            py::list rows;
            for (const TensorInfo& info : spec.tensors())
              rows.append(py::make_tuple(info.name, to_tuple(info.shape.ndim, info.shape.size),
                                         dtype_name(info.dtype)));
            return rows;
          })
      .def_property_readonly("aliases", [](const Spec& spec) { return spec.aliases(); })
      .def_property_readonly("num_bytes", &Spec::num_bytes)
      .def("find", &Spec::find, py::arg("name"))
      .def(
          "with_dtype",
          [](const Spec& spec, const std::string& dtype) {
            return std::make_shared<Spec>(spec.with_dtype(parse_dtype(dtype)));
          },
          py::arg("dtype"))
      .def("digest", &Spec::digest)
      .def("save", [](const Spec& spec) { return py::bytes(spec.save()); })
      .def_static(
          "load",
          [](const py::bytes& blob) { return std::make_shared<Spec>(Spec::load(as_view(blob))); },
          py::arg("blob"))
      .def("__eq__", [](const Spec& a, const Spec& b) { return a == b; })
      .def("__str__", &Spec::to_string);
}

void bind_rule(py::module_& module) {
  py::class_<Cut>(module, "Cut", "Divides one dim along one axis of the mesh.")
      .def(py::init([](int dim, int axis, const std::string& kind, int64_t units) {
             return Cut{dim, axis, parse_cut_kind(kind), units};
           }),
           py::arg("dim"), py::arg("axis"), py::arg("kind"), py::arg("units") = 1);
  py::class_<TensorRule>(module, "TensorRule", "Where the tensors of one template go.")
      .def(py::init(&make_tensor_rule), py::arg("from_"), py::arg("to") = "**", py::arg("slot") = 0,
           py::arg("cat_dim") = 0, py::arg("cuts") = std::vector<Cut>{},
           py::arg("where") = std::vector<std::tuple<int, int32_t, int32_t>>{},
           py::arg("layer_axis") = -1);
  py::class_<Mesh>(module, "Mesh", "Named axes, the last one fastest, over ranks.")
      .def(py::init(&make_mesh), py::arg("axes"), py::arg("ranks"));
  py::class_<LayoutRule>(module, "LayoutRule", "How the ranks of a mesh cut tensors; no shapes.")
      .def(py::init([](std::string text, Mesh mesh, std::vector<TensorRule> rules,
                       std::vector<int64_t> layers) {
             return LayoutRule{std::move(text), std::move(mesh), std::move(rules),
                               std::move(layers)};
           }),
           py::arg("text"), py::arg("mesh"), py::arg("rules"),
           py::arg("layers") = std::vector<int64_t>{})
      .def_readonly("text", &LayoutRule::text)
      .def("__eq__", [](const LayoutRule& a, const LayoutRule& b) { return a == b; });
}

void bind_derived(py::module_& module) {
  const auto mutable_pointer = [](const LayoutPtr& layout) {
    return std::const_pointer_cast<Layout>(layout);
  };
  using Held = std::shared_ptr<Layout>;
  module.def(
      "owners_of",
      [=](const Held& layout, const std::string& dtype) {
        return mutable_pointer(owners_of(layout, parse_dtype(dtype)));
      },
      py::arg("layout"), py::arg("dtype"),
      "The layout in which each element belongs to one of its holders, in flat local tensors.");
  module.def(
      "select_tensors",
      [=](const Held& layout, const std::vector<std::string>& names) {
        return mutable_pointer(select_tensors(layout, names));
      },
      py::arg("layout"), py::arg("names"), "The layout of these tensors alone.");
  module.def(
      "common_part",
      [=](const Held& layout, const Held& other) -> std::optional<Held> {
        const LayoutPtr part = common_part(layout, other);
        return part ? std::optional(mutable_pointer(part)) : std::nullopt;
      },
      py::arg("layout"), py::arg("other"),
      "The layout cut down to what each rank has in the other one too; None if that is not all.");
  module.def(
      "without_copies", [=](const Held& layout) { return mutable_pointer(without_copies(layout)); },
      py::arg("layout"), "The layout without what tensor parallel ranks hold alike.");
  module.def(
      "make_update",
      [=](const Held& owners, const Held& train, const Held& gen) {
        const UpdateLayouts update = make_update(owners, train, gen);
        return std::pair(mutable_pointer(update.src), mutable_pointer(update.dst));
      },
      py::arg("owners"), py::arg("train"), py::arg("gen"),
      "The source and destination of the movement from owners to training and generation.");
}

}  // namespace

void bind_layout(py::module_& module) {
  bind_spec(module);
  bind_rule(module);
  py::class_<Layout, std::shared_ptr<Layout>>(module, "Layout",
                                              "Who holds what, exact about places.")
      .def(py::init([](std::string text, std::shared_ptr<Spec> spec, std::vector<Rank> ranks,
                       std::vector<LocalRow> locals, const std::vector<PieceRow>& pieces) {
             return std::const_pointer_cast<Layout>(make_layout(
                 std::move(text), std::move(spec), std::move(ranks), std::move(locals), pieces));
           }),
           py::arg("text"), py::arg("spec"), py::arg("ranks"), py::arg("locals"), py::arg("pieces"),
           "By hand: locals are (rank, name, shape, dtype), pieces are (tensor, rank, local name, "
           "box "
           "start, box size, offset, strides), in elements.")
      .def(
          "partial",
          [](const Layout& layout, const std::string& op) {
            return std::const_pointer_cast<Layout>(layout.partial(parse_reduction(op)));
          },
          py::arg("op"), "This layout with pieces that are contributions: sum, mean, min or max.")
      .def_property_readonly("op", [](const Layout& layout) { return op_name(layout.op()); })
      .def_property_readonly("text", &Layout::text)
      .def_property_readonly(
          "spec",
          [](const Layout& layout) { return std::const_pointer_cast<Spec>(layout.spec_ptr()); })
      .def_property_readonly("ranks", &Layout::ranks)
      .def("locals", &locals_of, py::arg("rank"))
      .def("pieces", &pieces_of, py::arg("rank"))
      .def("padded", &padded_of, py::arg("rank"),
           "Names of the local tensors with elements that no piece fills.")
      .def("num_bytes", &Layout::num_bytes, py::arg("rank"))
      .def("check", &Layout::check)
      .def("digest", &Layout::digest)
      .def("to_string", &Layout::to_string, py::arg("rank"))
      .def("save", [](const Layout& layout) { return py::bytes(layout.save()); })
      .def_static(
          "load",
          [](const py::bytes& blob) {
            return std::make_shared<Layout>(Layout::load(as_view(blob)));
          },
          py::arg("blob"))
      .def("__eq__", [](const Layout& a, const Layout& b) { return a == b; });
  module.def(
      "bind",
      [](const LayoutRule& rule, std::shared_ptr<Spec> spec) {
        py::gil_scoped_release release;
        return std::const_pointer_cast<Layout>(hybridengine::bind(rule, spec));
      },
      py::arg("rule"), py::arg("spec"));
  module.def(
      "share_of",
      [](const std::vector<int64_t>& shape, const TensorRule& rule, const Mesh& mesh,
         int32_t position) {
        const TensorInfo tensor{rule.from, Shape(shape), Dtype::kUint8};
        const Box box = share_of(tensor, rule, mesh, position).box;
        return py::make_tuple(to_tuple(box.ndim, box.start), to_tuple(box.ndim, box.size));
      },
      py::arg("shape"), py::arg("rule"), py::arg("mesh"), py::arg("position"),
      "Start and size of what a rule's cuts leave of a tensor on one position of the mesh.");
  bind_derived(module);
}

}  // namespace hybridengine
