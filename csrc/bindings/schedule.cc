#include "schedule/schedule.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/bindings.h"
#include "bindings/convert.h"

namespace py = pybind11;

namespace hybridengine {
namespace {

py::dict to_dict(const Bucket& bucket) {
  py::list items;
  for (const Item& item : bucket.items)
    items.append(py::make_tuple(item.move, item.offset_bytes,
                                to_tuple(item.box.ndim, item.box.start),
                                to_tuple(item.box.ndim, item.box.size)));
  py::dict result;
  result["src"] = bucket.src;
  result["dst"] = bucket.dst;
  result["step"] = bucket.step;
  result["index"] = bucket.index;
  result["round"] = bucket.round;
  result["gate"] = bucket.gate;
  result["feeds"] = bucket.feeds;
  result["plain"] = bucket.plain;
  result["num_bytes"] = bucket.num_bytes;
  result["items"] = items;
  return result;
}

std::vector<std::tuple<Rank, Rank, int64_t, int64_t>> pairs_of(const std::shared_ptr<Plan>& plan,
                                                               int64_t bucket_bytes) {
  const py::gil_scoped_release release;
  std::vector<std::tuple<Rank, Rank, int64_t, int64_t>> rows;
  for (const PairSum& each : sum_pairs(plan, bucket_bytes))
    rows.emplace_back(each.src, each.dst, each.num_bytes, each.num_buckets);
  return rows;
}

}  // namespace

void bind_schedule(py::module_& module) {
  module.attr("DEFAULT_BUCKET_BYTES") = kDefaultBucketBytes;
  py::class_<Schedule, std::shared_ptr<Schedule>>(module, "Schedule",
                                                  "One rank's moves cut and fused into buckets.")
      .def_property_readonly("rank", &Schedule::rank)
      .def_property_readonly("bucket_bytes", &Schedule::bucket_bytes)
      .def_property_readonly("in_order", &Schedule::in_order)
      .def_property_readonly("num_moves", [](const Schedule& s) { return s.moves().size(); })
      .def_property_readonly("num_buckets", [](const Schedule& s) { return s.buckets().size(); })
      .def_property_readonly(
          "plan", [](const Schedule& s) { return std::const_pointer_cast<Plan>(s.plan_ptr()); })
      .def_property_readonly(
          "buckets",
          [](const Schedule& schedule) {
            py::list rows;
            for (const Bucket& bucket : schedule.buckets()) rows.append(to_dict(bucket));
            return rows;
          },
          "Dicts; items are (move, offset in bytes, box start, box size).")
      .def_property_readonly("incoming", &Schedule::incoming, "Ids, in the order of rounds.")
      .def_property_readonly("outgoing", &Schedule::outgoing, "Ids, in the order of rounds.")
      .def("check", &Schedule::check, py::call_guard<py::gil_scoped_release>())
      .def("digest", &Schedule::digest, py::call_guard<py::gil_scoped_release>())
      .def("save", [](const Schedule& schedule) { return py::bytes(schedule.save()); })
      .def_static("load",
                  [](const py::bytes& blob) {
                    return std::const_pointer_cast<Schedule>(Schedule::load(as_view(blob)));
                  })
      .def("__eq__", [](const Schedule& a, const Schedule& b) { return a == b; })
      .def("__repr__",
           [](const Schedule& schedule) {
             return str_cat("Schedule(", route_of(schedule.plan()), ", rank ", schedule.rank(),
                            ", ", counted(schedule.buckets().size(), "bucket"), " of at most ",
                            schedule.bucket_bytes(), " bytes)");
           })
      .def("__str__", &Schedule::to_string);
  module.def(
      "make_schedule",
      [](std::shared_ptr<Plan> plan, Rank rank, int64_t bucket_bytes, bool in_order) {
        py::gil_scoped_release release;
        return std::const_pointer_cast<Schedule>(make_schedule(plan, rank, bucket_bytes, in_order));
      },
      py::arg("plan"), py::arg("rank"), py::arg("bucket_bytes") = kDefaultBucketBytes,
      py::arg("in_order") = false);
  module.def("pairs_of", &pairs_of, py::arg("plan"), py::arg("bucket_bytes"),
             "(src, dst, bytes, buckets) of each pair of ranks with payload, ascending.");
}

}  // namespace hybridengine
