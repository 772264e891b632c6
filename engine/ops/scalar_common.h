// What all functors share; see scalar.h.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "engine/core/attributes.h"
#include "engine/ops/scalar_math.h"

namespace teletensor::ops::scalar {

using core::Attributes;
using Int = std::int64_t;
using UInt = std::uint64_t;

enum Types { kReal = 1, kInteger = 2, kAny = 3 };

template <class T>
inline constexpr bool is_int = std::is_same_v<T, Int>;

inline Int wrap_add(Int a, Int b) {
  return static_cast<Int>(static_cast<UInt>(a) + static_cast<UInt>(b));
}
inline Int wrap_sub(Int a, Int b) {
  return static_cast<Int>(static_cast<UInt>(a) - static_cast<UInt>(b));
}
inline Int wrap_mul(Int a, Int b) {
  return static_cast<Int>(static_cast<UInt>(a) * static_cast<UInt>(b));
}

inline Int to_int(double v) {  // saturated; NaN as 0
  if (v != v) return 0;
  if (v >= 0x1p63) return INT64_MAX;
  return v < -0x1p63 ? INT64_MIN : static_cast<Int>(v);
}

// NaN where one is.
template <class T>
T minimum(T a, T b) {
  return ((b < a) | (b != b)) ? b : a;
}
template <class T>
T maximum(T a, T b) {
  return ((b > a) | (b != b)) ? b : a;
}

}  // namespace teletensor::ops::scalar
