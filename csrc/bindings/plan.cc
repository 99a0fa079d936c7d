#include "plan/plan.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"

namespace py = pybind11;

namespace hybridengine {
namespace {

py::dict to_dict(const RankBytes& row) {
  py::dict result;
  result["rank"] = row.rank;
  result["needed_bytes"] = row.needed_bytes;
  result["held_bytes"] = row.held_bytes;
  result["bound_bytes"] = row.bound_bytes;
  result["received_bytes"] = row.received_bytes;
  result["sent_bytes"] = row.sent_bytes;
  return result;
}

py::list rows_of(const Certificate& certificate) {
  py::list rows;
  for (const RankBytes& row : certificate.ranks) rows.append(to_dict(row));
  return rows;
}

std::string shown_certificate(const Certificate& certificate) {
  return str_cat("Certificate(", counted(certificate.ranks.size(), "rank"), ", ",
                 certificate.moved_bytes(), " bytes between them, ",
                 certificate.received_over_bound(), " x the bound)");
}

py::dict to_dict(const Plan& plan, const Move& move) {
  py::dict result;
  result["tensor"] = plan.dst().spec().tensors()[move.tensor].name;
  result["src"] = move.src;
  result["dst"] = move.dst;
  result["start"] = to_tuple(move.box.ndim, move.box.start);
  result["size"] = to_tuple(move.box.ndim, move.box.size);
  result["src_piece"] = move.src_piece;
  result["dst_piece"] = move.dst_piece;
  result["src_dtype"] = dtype_name(move.src_dtype);
  result["dst_dtype"] = dtype_name(move.dst_dtype);
  result["op"] = op_name(move.op);
  result["step"] = int{move.step};
  result["num_bytes"] = move.num_bytes();
  return result;
}

}  // namespace

void bind_plan(py::module_& module) {
  py::class_<Certificate>(module, "Certificate", "Bytes of each rank against what it must receive.")
      .def_property_readonly("ranks", &rows_of)
      .def_readonly("senders", &Certificate::senders)
      .def_property_readonly("received_over_bound", &Certificate::received_over_bound)
      .def_property_readonly("sender_max_over_mean", &Certificate::sender_max_over_mean)
      .def_property_readonly("moved_bytes", &Certificate::moved_bytes)
      .def("__repr__", &shown_certificate)
      .def("__str__", &Certificate::to_string);
  py::class_<Plan, std::shared_ptr<Plan>>(module, "Plan", "What turns one layout into another.")
      .def_property_readonly("certificate", &Plan::certificate)
      .def_property_readonly("reduces", &Plan::reduces)
      .def_property_readonly("num_moves", &Plan::num_moves, "Of all ranks together.")
      .def(
          "moves_of",
          [](const Plan& plan, Rank rank) {
            py::list rows;
            for (const Move& move : plan.moves_of(rank)) rows.append(to_dict(plan, move));
            return rows;
          },
          py::arg("rank"), "That a rank sends, receives or keeps.")
      .def("check", &Plan::check, py::call_guard<py::gil_scoped_release>())
      .def("digest", &Plan::digest, py::call_guard<py::gil_scoped_release>())
      .def("save", [](const Plan& plan) { return py::bytes(plan.save()); })
      .def_static("load",
                  [](const py::bytes& blob) {
                    return std::const_pointer_cast<Plan>(Plan::load(as_view(blob)));
                  })
      .def("__eq__", [](const Plan& a, const Plan& b) { return a == b; })
      .def("__repr__",
           [](const Plan& plan) {
             return str_cat("Plan(", route_of(plan), ", ",
                            counted(static_cast<size_t>(plan.num_moves()), "move"), ", ",
                            plan.certificate().moved_bytes(), " bytes between ranks)");
           })
      .def("__str__", &Plan::to_string);
  module.def(
      "make_plan",
      [](std::shared_ptr<Layout> src, std::shared_ptr<Layout> dst) {
        py::gil_scoped_release release;
        return std::const_pointer_cast<Plan>(make_plan(src, dst));
      },
      py::arg("src"), py::arg("dst"));
}

}  // namespace hybridengine
