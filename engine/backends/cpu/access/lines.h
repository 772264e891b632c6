// The lines of a tensor along one dimension, over which scans, sorts and row-wise losses iterate.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/backends/backend.h"

namespace teletensor::backends::cpu {

class Lines {
 public:
  // infer has checked `dim`, which may be negative. A 0-d tensor is one line of one element.
  Lines(const core::Dims& shape, std::int64_t dim) : shape_(shape) {
    dim_ = static_cast<int>(dim < 0 ? dim + shape.size() : dim);
    if (shape.empty()) return;
    length_ = shape[dim_];
    bool empty = false;
    for (int i = 0; i < shape.size(); ++i) {
      if (i == dim_) continue;
      empty |= shape[i] == 0;
      // If one size is 0, the product of the other sizes can exceed 63 bits.
      if (__builtin_mul_overflow(count_, shape[i], &count_)) {
        count_ = std::numeric_limits<std::int64_t>::max();
      }
    }
    if (empty) count_ = 0;
  }
  std::int64_t length() const { return length_; }
  std::int64_t count() const { return count_; }
  // The distance between adjacent elements of a line, in a tensor of this shape.
  std::int64_t stride(const core::Geometry& g) const {
    return shape_.empty() ? 1 : g.strides[dim_];
  }
  // The offset of line i from the first element of a tensor with geometry `g`. The shape of `g` is
  // shape_, or shape_ without dimension dim_, or shape_ with another size of dim_.
  std::int64_t offset(const core::Geometry& g, std::int64_t i) const {
    std::int64_t at = 0;
    int of_g = g.rank() - 1;
    const bool without = g.rank() < shape_.size();
    for (int d = shape_.size() - 1; d >= 0; --d) {
      if (d == dim_) {
        if (!without) --of_g;
        continue;
      }
      at += i % shape_[d] * g.strides[of_g--];
      i /= shape_[d];
    }
    return at;
  }
  // Calls f(begin, end) for ranges of lines (not at all if lines are empty), in parallel if there
  // is enough work. `cost` is in nanoseconds per element, approximately.
  template <class F>
  void ranges(Parallel& parallel, std::int64_t cost, F&& f) const {
    if (length_ == 0) return;
    const std::int64_t work = length_ * cost;
    if (count_ <= 1 || count_ <= kSplitAbove / work) return f(std::int64_t{0}, count_);
    const std::int64_t lines_a_part = std::max<std::int64_t>(1, kPart / work);
    const std::int64_t parts = (count_ + lines_a_part - 1) / lines_a_part;
    parallel.run(parts, [&](std::int64_t part) {
      f(part * lines_a_part, std::min(count_, (part + 1) * lines_a_part));
    });
  }
  // Calls f(i) for every line.
  template <class F>
  void run(Parallel& parallel, std::int64_t cost, F&& f) const {
    ranges(parallel, cost, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) f(i);
    });
  }

 private:
  static constexpr std::int64_t kPart = 200'000;  // approximate nanoseconds per part
  static constexpr std::int64_t kSplitAbove = 400'000;
  core::Dims shape_;
  int dim_ = 0;
  std::int64_t length_ = 1, count_ = 1;
};

}  // namespace teletensor::backends::cpu
