// Sizes of windows that slide over the last dimensions of a tensor: convolution, pooling, unfold.
// Attributes come from clients and may have any value; after check_windows the arithmetic is safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/ops/op.h"

namespace teletensor::ops {

// One number for each of the last (spatial) dimensions, 1 to 3 of them.
struct Windows {
  core::Dims kernel, stride, padding, dilation;
};

// `name` (attribute `index`) has `count` numbers in [least, 2^31).
core::Status window_attribute(const InferContext& c, std::size_t index, std::string_view name,
                              int count, std::int64_t least, core::Dims& to);

// Elements that a window spans: dilation * (kernel - 1) + 1.
inline std::int64_t window_span(const Windows& w, int d) {
  return w.dilation[d] * (w.kernel[d] - 1) + 1;
}

// How many windows fit into `size` elements with padding on both sides; 0 or less where none does.
// With `ceil` the last may begin inside and end outside (PyTorch's ceil_mode).
std::int64_t window_count(const Windows& w, int d, std::int64_t size, bool ceil = false);

// The batching rule of an op whose tensors are all [N, C, ...] (where `tensors` of them are): the
// batch becomes part of N.
void merge_batch(BatchContext& c, OpId op, std::size_t tensors = 1);

// Sizes of input and weight that a convolution refuses in any role.
inline constexpr std::int64_t kLargestWindowed = std::int64_t{1} << 56;

}  // namespace teletensor::ops
