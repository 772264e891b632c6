// Strided memory: iterating over operands in the order of a result, and copies between any two
// layouts.
#pragma once

#include <cstdint>

#include "engine/backends/backend.h"

namespace teletensor::backends::cpu {

// The dimensions of a result ordered from the smallest stride to the largest (without those of size
// 1). Kernels iterate over a result and all its operands in this linear order.
struct LinearOrder {
  explicit LinearOrder(const core::Geometry& result);
  int rank = 0;
  int dims[core::kMaxRank];
  std::int64_t sizes[core::kMaxRank];
  std::int64_t count = 1;  // number of elements
};

// One operand in a linear order. Adjacent dimensions are merged where possible.
class Walk {
 public:
  Walk() = default;
  // The operand broadcasts to the result, of rank `rank`, from which `order` was made.
  Walk(const core::Geometry& operand, const LinearOrder& order, int rank);

  bool dense() const { return rank_ == 0 || (rank_ == 1 && strides_[0] == 1); }
  bool constant() const { return rank_ == 0 || (rank_ == 1 && strides_[0] == 0); }
  int rank() const { return rank_; }
  std::int64_t size(int axis) const { return sizes_[axis]; }  // axis 0 is the innermost
  std::int64_t stride(int axis) const { return strides_[axis]; }

  // Calls run(element offset, stride, length) for the runs that cover [start, start + count).
  template <class F>
  void runs(std::int64_t start, std::int64_t count, F&& run) const {
    if (rank_ <= 1) {
      const std::int64_t stride = rank_ == 0 ? 0 : strides_[0];
      run(start * stride, stride, count);
      return;
    }
    std::int64_t index[core::kMaxRank], offset = 0;
    for (int d = 0; d < rank_; ++d) {
      index[d] = d + 1 < rank_ ? start % sizes_[d] : start;
      start /= sizes_[d];
      offset += index[d] * strides_[d];
    }
    while (count > 0) {
      const std::int64_t left = sizes_[0] - index[0], length = left < count ? left : count;
      run(offset, strides_[0], length);
      count -= length;
      offset -= index[0] * strides_[0];
      index[0] = 0;
      for (int d = 1; d < rank_; ++d) {
        offset += strides_[d];
        if (++index[d] < sizes_[d] || d + 1 == rank_) break;
        offset -= sizes_[d] * strides_[d];
        index[d] = 0;
      }
    }
  }

 private:
  int rank_ = 0;
  std::int64_t sizes_[core::kMaxRank];
  std::int64_t strides_[core::kMaxRank];
};

// Writes `from` (a tensor that broadcasts to `to`, or a number) into `to` and converts the dtype:
// f16 and bf16 round to nearest even; a float becomes an integer by truncation, saturated, with NaN
// as 0; a complex number becomes a real one by taking its real part. The two may share memory only
// if they have the same geometry and dtype. Copies with equal orders (memcpy) and transposes
// (tiles) are fast. Copies of more than about 0.3 ms are split into parts for `parallel`.
void strided_copy(const TensorArg& from, const TensorArg& to, Parallel& parallel);

// An element of 16 bytes, for kernels that only move elements.
struct Bytes16 {
  std::uint64_t low, high;
};

// Calls f(T{}) with an unsigned type of this size, for kernels that only move elements.
template <class F>
void with_bytes(std::size_t size, F&& f) {
  switch (size) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    case 8:
      return f(std::uint64_t{});
    default:
      return f(Bytes16{});
  }
}

// Stores `number` as an element of `dtype`, with the same conversions. `to` has 16 bytes.
void number_bytes(const core::Number& number, core::DType dtype, void* to);

// Splits [0, count) into ranges of about 200 us of work, each a multiple of `grain`. The number of
// ranges depends only on count and cost. Short work runs on the calling thread.
template <class F>
void split(Parallel& parallel, std::int64_t count, double ns_per_element, std::int64_t grain,
           F&& range) {
  const double total = static_cast<double>(count) * ns_per_element;
  if (total < 300e3) {
    range(std::int64_t{0}, count);
    return;
  }
  const std::int64_t parts = static_cast<std::int64_t>(total / 200e3) + 1;
  const std::int64_t size = ((count + parts - 1) / parts + grain - 1) / grain * grain;
  parallel.run((count + size - 1) / size, [&](std::int64_t part) {
    const std::int64_t begin = part * size, end = begin + size < count ? begin + size : count;
    if (!parallel.cancelled()) range(begin, end);
  });
}

}  // namespace teletensor::backends::cpu
