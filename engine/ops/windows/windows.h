// Sizes of windows that slide over the last dimensions of a tensor: convolution, pooling, unfold.
// The attributes come from clients and may have any values; after check_windows the arithmetic
// cannot overflow.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/ops/op.h"

namespace teletensor::ops {

// One number for each of the last 1 to 3 (spatial) dimensions.
struct Windows {
  core::Dims kernel, stride, padding, dilation;
};

// Checks that `name` (attribute `index`) has `count` numbers in [least, 2^31), and reads them.
core::Status window_attribute(const InferContext& c, std::size_t index, std::string_view name,
                              int count, std::int64_t least, core::Dims& to);

// The number of elements that a window spans: dilation * (kernel - 1) + 1.
inline std::int64_t window_span(const Windows& w, int d) {
  return w.dilation[d] * (w.kernel[d] - 1) + 1;
}

// The number of windows that fit into `size` elements with padding on both sides; 0 or less if none
// fits. With `ceil` the last window may begin inside and end outside (PyTorch's ceil_mode).
std::int64_t window_count(const Windows& w, int d, std::int64_t size, bool ceil = false);

// The batching rule of an op whose first `tensors` operands are [N, C, ...]: merges the batch into
// N.
void merge_batch(BatchContext& c, OpId op, std::size_t tensors = 1);

// Input and weight sizes above this are refused by all convolutions.
inline constexpr std::int64_t kLargestWindowed = std::int64_t{1} << 56;

}  // namespace teletensor::ops
