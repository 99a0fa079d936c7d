// MaskedArguments: what a caller of masked_all_reduce passes, read in one go.
//
// What is not plain (a tensor that is no memory as it lies, a size that is a text, results that are
// yet to be made) the package is asked for. `package` is a Python object with
//   tensor(what, index, given, written): a tensor to use in place of one that cannot be used as it
//     is, or that lies scattered and will be written into;
//   size(given): bytes of a bucket;
//   made(values, zeros): tensors for the results.
// Each may raise UsageError, in the words of the package.
//
// What it is not: aware of other ranks. Called by collective_masked.cc. Needs the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "bindings/memory.h"
#include "collective/masked.h"

namespace hybridengine {

/// As Python passes them.
struct MaskedCall {
  pybind11::object values;    // a tensor, or a list or tuple of them
  pybind11::object scores;    // of one tensor; or of as many, in anything that is iterated
  pybind11::object out;       // as `values`, or None: the package makes results
  pybind11::object residual;  // as `values`, or None
  std::string granularity;
  std::string op;
  pybind11::object threshold;
  pybind11::object fill;
  pybind11::object bucket_bytes;  // a number, or a text
  std::string route;
  bool counts = false;
};

class MaskedArguments {
 public:
  /// Throws UsageError on what does not fit, and what the package raises.
  MaskedArguments(const MaskedCall& call, pybind11::handle package);
  MaskedArguments(const MaskedArguments&) = delete;  // tensors point into it
  MaskedArguments& operator=(const MaskedArguments&) = delete;

  const std::vector<MaskedTensor>& tensors() const { return tensors_; }
  const MaskedOptions& options() const { return options_; }
  /// Digest of what all ranks have to pass alike.
  uint64_t statement() const { return statement_; }
  /// The tensors of the results.
  const pybind11::list& out() const { return out_; }
  /// Of all tensors, one after the other; none where they were not asked for.
  std::vector<int32_t>& counts() { return counts_; }

 private:
  void read(const MaskedCall& call);
  void read_tensor(size_t index, const BorrowedMemory& values, const std::string& granularity);
  TensorMemory read_scores(pybind11::handle scores, const Shape& shape, size_t index);
  TensorMemory read_written(pybind11::handle tensor, const TensorMemory& like, const char* what,
                            size_t index);
  BorrowedMemory borrow(pybind11::handle tensor, bool written, const char* what, size_t index);
  void place_counts();
  uint64_t digest(const MaskedCall& call) const;

  pybind11::handle package_;
  pybind11::list values_, scores_, out_;
  std::optional<pybind11::list> residual_;
  pybind11::list kept_;         // what the package gave in place of others
  std::deque<double> numbers_;  // scores that were given as such
  std::vector<int32_t> counts_;
  std::vector<MaskedTensor> tensors_;
  std::vector<int64_t> num_entries_;  // by tensor
  MaskedOptions options_;
  uint64_t statement_ = 0;
};

}  // namespace hybridengine
