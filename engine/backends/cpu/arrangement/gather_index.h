// Iteration of gather and scatter: the rows of the index, and the elements of x that they name.
#pragma once

#include <algorithm>

#include "engine/backends/cpu/arrangement/index_places.h"

namespace teletensor::backends::cpu {

// The rows (runs along the last dimension) of one shape in row-major order, for tensors with
// different strides.
class Rows {
 public:
  explicit Rows(const core::Dims& shape) : shape_(shape) {
    if (!shape.empty()) length_ = shape.back();
    for (int d = 0; d + 1 < shape.size(); ++d) count_ *= shape[d];
  }
  std::int64_t length() const { return length_; }
  std::int64_t count() const { return length_ == 0 ? 0 : count_; }
  // The distance between adjacent elements of a row.
  std::int64_t stride(const core::Geometry& g) const {
    return shape_.empty() ? 1 : g.strides.back();
  }
  // The offset of row i from the tensor's first element; the coordinate in dimension `without` is
  // ignored.
  std::int64_t offset(const core::Geometry& g, std::int64_t i, int without = -1) const {
    std::int64_t at = 0;
    for (int d = shape_.size() - 2; d >= 0; --d) {
      if (d != without) at += i % shape_[d] * g.strides[d];
      i /= shape_[d];
    }
    return at;
  }

 private:
  core::Dims shape_;
  std::int64_t length_ = 1, count_ = 1;
};

// gather and scatter: position (.., i, .., j) of the index names element (.., index, .., j) of x.
struct Picks {
  IndexList index;
  core::Dims shape;
  int dim = 0;
  std::int64_t step = 0;  // x's stride in dimension `dim`
};

// Refuses an index out of range. Attribute 0 is the dimension.
core::Status picks_of(KernelCall& call, const core::Geometry& x, const TensorArg& index,
                      Picks& picks);

// Calls f(offset in x for index 0, x's stride, position of the row's first index) for rows of the
// index. The ranks are equal, except that one may be 0-d and the other [n].
template <class F>
void each_row(const Rows& rows, const Picks& picks, const core::Geometry& x, std::int64_t begin,
              std::int64_t end, F&& f) {
  const bool flat = x.rank() != picks.shape.size();
  const bool last = picks.dim == picks.shape.size() - 1 || picks.shape.empty();
  const std::int64_t stride = last || flat ? 0 : rows.stride(x);
  for (std::int64_t r = begin; r < end; ++r) {
    f(flat ? 0 : rows.offset(x, r, picks.dim), stride, r * rows.length());
  }
}

}  // namespace teletensor::backends::cpu
