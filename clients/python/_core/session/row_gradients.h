// RowGradients has the rows of gradients that functions of the client give in one backward. They
// belong to leaves of which only some rows were used (nn.functional.embedding with sparse=True): a
// dense gradient of the leaf would have the size of the whole leaf. The rows become a sparse
// tensor, which only this client knows (teletensor/sparse/_gradients.py).
#pragma once

#include <nanobind/nanobind.h>

#include <unordered_map>
#include <utility>

#include "clients/session/session.h"

namespace teletensor::client {

namespace nb = nanobind;

struct PyTensor;

// Belongs to the backward of this thread that runs while the object exists; a hook may begin
// another backward in it. Runs under the GIL.
class RowGradients {
 public:
  RowGradients() : outer_(std::exchange(innermost, this)) {}
  ~RowGradients() { innermost = outer_; }
  RowGradients(const RowGradients&) = delete;
  RowGradients& operator=(const RowGradients&) = delete;

  // Returns the rows of the innermost backward; null outside of a backward.
  static RowGradients* current() { return innermost; }

  void give(const Handle& leaf, nb::object rows) { given_[&leaf].append(std::move(rows)); }
  // Removes and returns the list of what was given for the leaf; null if nothing was.
  nb::object take(const Handle& leaf) {
    const auto found = given_.extract(&leaf);
    return found.empty() ? nb::object() : nb::object(std::move(found.mapped()));
  }
  // The sparse gradient of an input of the backward; null if the leaf has none.
  void set_result(const Handle& leaf, nb::object gradient) {
    results_[&leaf] = std::move(gradient);
  }
  nb::object result(const Handle& leaf) const {
    const auto found = results_.find(&leaf);
    return found == results_.end() ? nb::object() : found->second;
  }

 private:
  inline static thread_local RowGradients* innermost = nullptr;

  RowGradients* const outer_;
  std::unordered_map<const Handle*, nb::list> given_;
  std::unordered_map<const Handle*, nb::object> results_;
};

// Throws if a function is being captured: a program has no sparse gradients.
void refuse_in_capture(const PyTensor& tensor);
// The .grad of a tensor that has a sparse one. A dense gradient that a backward has added since
// makes it dense.
nb::object with_sparse_grad(PyTensor& tensor);
// Checks a value that is assigned to .grad of a tensor and is no Tensor. Throws if it is no sparse
// tensor, or if it does not fit the tensor.
nb::object checked_sparse_grad(PyTensor& tensor, nb::handle value);

}  // namespace teletensor::client
