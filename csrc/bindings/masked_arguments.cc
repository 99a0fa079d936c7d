#include "bindings/masked_arguments.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "base/hash.h"

namespace py = pybind11;

namespace hybridengine {
namespace {

MaskedOp parse_masked_op(std::string_view name) {
  constexpr std::array<std::string_view, 3> kNames{"sum", "mean", "mean_world"};
  for (size_t at = 0; at < kNames.size(); ++at)
    if (kNames[at] == name) return static_cast<MaskedOp>(at);
  throw UsageError(str_cat("op=", name, " is not an operation of masked_all_reduce"), "",
                   "Use sum, mean or mean_world.");
}

std::optional<Route> parse_route(std::string_view name) {
  if (name == "fast") return std::nullopt;
  if (name == "wire") return Route::kWire;
  if (name == "dense") return Route::kDense;
  throw UsageError(str_cat("route=", name, " is not one"), "", "Use fast, wire or dense.");
}

/// What the scores of a tensor look like under a granularity.
Shape score_shape(const Shape& values, std::string_view granularity) {
  if (granularity == "element") return values;
  if (granularity == "tensor") return {};
  if (granularity != "row")
    throw UsageError(str_cat("granularity=", granularity, " is not one"), "",
                     "Use element, row or tensor.");
  Shape rows;
  rows.ndim = std::min(values.ndim, 1);
  rows.size[0] = rows.ndim == 1 ? values.size[0] : 0;
  return rows;
}

void check_like(const BorrowedMemory& found, const Shape& shape, const Dtype* dtype,
                const char* what, size_t index) {
  if (found.shape == shape && (dtype == nullptr || found.dtype == *dtype)) return;
  throw UsageError(
      str_cat(what, " does not fit tensor ", index),
      str_cat("it is ", found.shape.to_string(), " ", dtype_name(found.dtype), ", expected ",
              shape.to_string(), " ", dtype == nullptr ? "" : dtype_name(*dtype)),
      "");
}

/// As float(value) in Python.
double take_number(const char* name, py::handle value) {
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Float(value.ptr()));
  if (number) return PyFloat_AS_DOUBLE(number.ptr());
  const py::error_already_set error;
  if (!error.matches(PyExc_TypeError) && !error.matches(PyExc_ValueError) &&
      !error.matches(PyExc_OverflowError))
    throw error;
  throw UsageError(str_cat(name, " is ", std::string(py::repr(value))),
                   std::string(py::str(error.value())), "Give a number.");
}

/// Numbers of numpy have a shape too.
bool is_array(py::handle given) {
  static PyObject* const shape = PyUnicode_InternFromString("shape");
  return !PyFloat_Check(given.ptr()) &&
         PyObject_HasAttr(reinterpret_cast<PyObject*>(Py_TYPE(given.ptr())), shape) != 0;
}

/// What the package answers; a UsageError of its own as one of the core's.
template <class... Args>
py::object ask(py::handle package, const char* what, const Args&... args) {
  try {
    return package.attr(what)(args...);
  } catch (const py::error_already_set& error) {
    if (!error.matches(py::module_::import("hybridengine._core").attr("UsageError"))) throw;
    throw UsageError(std::string(py::str(error.value())), "", "");
  }
}

/// "auto" is 0.
int64_t take_bucket_bytes(py::handle given, py::handle package) {
  const bool is_text = PyUnicode_CheckExact(given.ptr());
  if (is_text && PyUnicode_CompareWithASCIIString(given.ptr(), "auto") == 0) return 0;
  constexpr int64_t kMost = int64_t{1} << 62;
  int overflow = 0;
  const int64_t bytes =
      PyLong_CheckExact(given.ptr()) ? PyLong_AsLongLongAndOverflow(given.ptr(), &overflow) : 0;
  if (overflow == 0 && bytes > 0 && bytes < kMost) return bytes;
  return ask(package, "size", given).cast<int64_t>();
}

py::handle item(const py::list& list, size_t index) {
  return PyList_GET_ITEM(list.ptr(), static_cast<py::ssize_t>(index));
}

bool are_several(const py::object& given) {
  return PyList_Check(given.ptr()) || PyTuple_Check(given.ptr());
}

py::list listed(const py::object& given) {
  if (are_several(given)) return py::list(given);
  py::list single;
  single.append(given);
  return single;
}

/// One for each tensor of the values.
py::list listed_scores(const MaskedCall& call, size_t count) {
  const bool several = are_several(call.values);
  if (several && !py::hasattr(call.scores, "__iter__"))
    throw UsageError(str_cat("scores are ", std::string(py::repr(call.scores))), "",
                     str_cat("Give one for each of the ", count, " tensors."));
  py::list scores;
  if (several)
    scores = py::list(call.scores);
  else
    scores.append(call.scores);
  if (scores.size() == count) return scores;
  throw UsageError(str_cat("there are ", scores.size(), " scores, ", count, " tensors"), "",
                   "Give as many.");
}

void check_count(size_t found, const char* what, size_t expected) {
  if (found == expected) return;
  throw UsageError(str_cat(what, " has ", found, " tensors, values ", expected), "",
                   "Give as many.");
}

}  // namespace

MaskedArguments::MaskedArguments(const MaskedCall& call, py::handle package) : package_(package) {
  options_.op = parse_masked_op(call.op);
  options_.route = parse_route(call.route);
  options_.counts = call.counts;
  options_.threshold = take_number("threshold", call.threshold);
  options_.fill = take_number("fill", call.fill);
  if (std::isnan(options_.threshold))
    throw UsageError("threshold is NaN", "", "Give a number; inf lets nobody take part.");
  options_.bucket_bytes = take_bucket_bytes(call.bucket_bytes, package);
  read(call);
  statement_ = digest(call);
}

void MaskedArguments::read(const MaskedCall& call) {
  values_ = listed(call.values);
  const size_t count = values_.size();
  std::vector<BorrowedMemory> values;
  values.reserve(count);
  for (size_t i = 0; i < count; ++i) values.push_back(borrow(item(values_, i), false, "tensor", i));
  if (call.out.is_none()) {
    options_.out_is_filled = options_.fill == 0 && !std::signbit(options_.fill);
    out_ = ask(package_, "made", values_, options_.out_is_filled);
  } else {
    out_ = listed(call.out);
    check_count(out_.size(), "out", count);
  }
  if (!call.residual.is_none()) residual_ = listed(call.residual);
  if (residual_) check_count(residual_->size(), "residual", count);
  scores_ = listed_scores(call, count);
  tensors_.resize(count);
  for (size_t i = 0; i < count; ++i) read_tensor(i, values[i], call.granularity);
  if (call.counts) place_counts();
}

void MaskedArguments::read_tensor(size_t index, const BorrowedMemory& values,
                                  const std::string& granularity) {
  MaskedTensor& each = tensors_[index];
  const Shape shape = score_shape(values.shape, granularity);
  each.values = values;
  each.scores = read_scores(item(scores_, index), shape, index);
  if (item(out_, index).is(item(values_, index)) && !values.read_only && is_contiguous(values))
    each.out = values;
  else
    each.out = read_written(item(out_, index), values, "out", index);
  if (residual_) each.residual = read_written(item(*residual_, index), values, "residual", index);
  const int64_t entries = granularity == "tensor" ? 1 : shape.num_elems();
  each.width = std::max<int64_t>(1, values.shape.num_elems() / std::max<int64_t>(1, entries));
  num_entries_.push_back(entries);
}

/// What cannot be used as it is the package is asked for; its own words come first then.
BorrowedMemory MaskedArguments::borrow(py::handle tensor, bool written, const char* what,
                                       size_t index) {
  try {
    const BorrowedMemory memory = written ? borrow_writable(tensor) : borrow_memory(tensor);
    if (!written || is_contiguous(memory)) return memory;
  } catch (const UsageError&) {
  }
  const py::object given = ask(package_, "tensor", what, index, tensor, written);
  kept_.append(given);
  return written ? borrow_writable(given) : borrow_memory(given);
}

TensorMemory MaskedArguments::read_written(py::handle tensor, const TensorMemory& like,
                                           const char* what, size_t index) {
  const BorrowedMemory memory = borrow(tensor, true, what, index);
  check_like(memory, like.shape, &like.dtype, what, index);
  return memory;
}

TensorMemory MaskedArguments::read_scores(py::handle scores, const Shape& shape, size_t index) {
  if (!is_array(scores)) {
    const double number = take_number("a score", scores);
    if (shape.ndim == 0) {
      numbers_.push_back(number);
      return {reinterpret_cast<std::byte*>(&numbers_.back()), shape, {}, Dtype::kFloat64};
    }
  }
  const BorrowedMemory memory = borrow_memory(scores);
  check_like(memory, shape, nullptr, "scores", index);
  return memory;
}

/// Zeros: an entry without elements is never counted. One at least, for a buffer of nothing is
/// none.
void MaskedArguments::place_counts() {
  int64_t total = 0;
  for (const int64_t each : num_entries_) total += each;
  counts_.assign(static_cast<size_t>(std::max<int64_t>(total, 1)), 0);
  int32_t* at = counts_.data();
  for (size_t i = 0; i < tensors_.size(); at += num_entries_[i++]) tensors_[i].counts = at;
}

uint64_t MaskedArguments::digest(const MaskedCall& call) const {
  Digest digest;
  for (const std::string& text : {call.granularity, call.op, call.route}) {
    digest.update_number(text.size());
    digest.update(text);
  }
  digest.update_number(options_.threshold);
  digest.update_number(options_.fill);
  digest.update_number(options_.counts);
  digest.update_number(options_.bucket_bytes);
  for (const MaskedTensor& each : tensors_) {
    digest.update_number(each.values.dtype);
    digest.update_number(each.values.shape.ndim);
    digest.update(each.values.shape.size.data(), sizeof(int64_t) * each.values.shape.ndim);
  }
  return digest.value();
}

}  // namespace hybridengine
