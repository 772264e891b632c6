// The one place where kernels multiply the sizes of their temporary memory.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "engine/core/geometry.h"

namespace teletensor::backends {

// More than any Scratch has, and far enough from what std::size_t holds that padding does not wrap.
inline constexpr std::size_t kNoSuchScratch = std::numeric_limits<std::int64_t>::max();

// The product of the factors, kNoSuchScratch where that is more than 63 bits count or a factor is
// negative. Factors must themselves be checked: write scratch_bytes(rows, columns, size), not
// scratch_bytes(rows * columns, size).
template <std::integral... Factors>
std::size_t scratch_bytes(Factors... factors) {
  std::int64_t bytes = 1;
  bool fits = true, zero = false;
  const auto multiply = [&](auto factor) {
    zero |= factor == 0;
    fits = fits && !(factor < 0) && !__builtin_mul_overflow(bytes, factor, &bytes);
  };
  (multiply(factors), ...);
  if (zero) return 0;
  return fits ? static_cast<std::size_t>(bytes) : kNoSuchScratch;
}

// Of a tensor of this shape, which nobody need have checked.
inline std::size_t scratch_bytes(const core::Dims& shape, std::size_t size) {
  const auto count = core::checked_numel(shape.span());
  return count.ok() ? scratch_bytes(*count, size) : kNoSuchScratch;
}

// a + b, kNoSuchScratch where either is or the sum would be more.
inline std::size_t add_scratch_bytes(std::size_t a, std::size_t b) {
  return a > kNoSuchScratch - std::min(b, kNoSuchScratch) ? kNoSuchScratch : a + b;
}

}  // namespace teletensor::backends
