// Overflow-checked sizes of temporary memory. All kernels multiply such sizes with these functions.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "engine/core/geometry.h"

namespace teletensor::backends {

// More bytes than any Scratch has, and far enough below the maximum of std::size_t that padding it
// does not overflow.
inline constexpr std::size_t kNoSuchScratch = std::numeric_limits<std::int64_t>::max();

// Returns the product of the factors, or kNoSuchScratch if it exceeds 63 bits or a factor is
// negative. Each factor must be free of overflow itself: write scratch_bytes(rows, columns, size),
// not scratch_bytes(rows * columns, size).
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

// Returns the size of a tensor of this shape. The shape may be unchecked.
inline std::size_t scratch_bytes(const core::Dims& shape, std::size_t size) {
  const auto count = core::checked_numel(shape.span());
  return count.ok() ? scratch_bytes(*count, size) : kNoSuchScratch;
}

// Returns a + b, or kNoSuchScratch if one of them is kNoSuchScratch or the sum exceeds it.
inline std::size_t add_scratch_bytes(std::size_t a, std::size_t b) {
  return a > kNoSuchScratch - std::min(b, kNoSuchScratch) ? kNoSuchScratch : a + b;
}

}  // namespace teletensor::backends
