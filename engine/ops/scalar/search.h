// Positions in sorted lines, and the order of rows; used by the CPU's kernels and the device's
// texts.
#pragma once

#include <cstdint>

#include "engine/ops/scalar/common.h"

namespace teletensor::ops::scalar {

// The position of the first of n ascending elements that does not come before the value. As in
// PyTorch's comparisons, a NaN among the elements, or as the value, moves the position on.
template <class A>
std::int64_t place_with_nan(const A* sorted, std::int64_t n, A value, bool right) {
  std::int64_t low = 0, high = n;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    const bool reached = right ? sorted[middle] > value : sorted[middle] >= value;
    if (reached) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Searches like the function above, but without branches and with an equal number of steps for
// every value. Precondition: no element is NaN.
template <class A, bool kRight>
std::int64_t place_of(const A* sorted, std::int64_t n, A value) {
  const A* low = sorted;
  while (n > 1) {
    const std::int64_t half = n / 2;
    const bool reached = kRight ? low[half - 1] > value : low[half - 1] >= value;
    low += reached ? 0 : half;
    n -= half;
  }
  const bool reached = kRight ? *low > value : *low >= value;
  return low - sorted + !reached;
}

template <class A>
std::int64_t sorted_place(const A* sorted, std::int64_t n, A value, bool right) {
  const bool plain = n > 0 && sorted[n - 1] == sorted[n - 1];  // NaNs are at the end
  if (!plain) return place_with_nan(sorted, n, value, right);
  return right ? place_of<A, true>(sorted, n, value) : place_of<A, false>(sorted, n, value);
}

// Returns true if row i of `width` elements comes before row j. NaN comes after all numbers; equal
// rows keep their order.
template <class A>
bool row_before(const A* rows, std::int64_t width, std::int64_t i, std::int64_t j) {
  for (std::int64_t k = 0; k < width; ++k) {
    const A a = rows[i * width + k], b = rows[j * width + k];
    if (a < b) return true;
    if (b < a) return false;
    if (a == b) continue;
    const bool a_is_nan = a != a, b_is_nan = b != b;
    if (a_is_nan != b_is_nan) return b_is_nan;
  }
  return i < j;
}

}  // namespace teletensor::ops::scalar
