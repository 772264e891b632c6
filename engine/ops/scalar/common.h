// Helpers that all functors share; see scalar.h.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "engine/core/attributes.h"
#include "engine/core/complex.h"
#include "engine/ops/scalar/complex.h"
#include "engine/ops/scalar/math.h"

namespace teletensor::ops::scalar {

using core::Attributes;
using Int = std::int64_t;
using UInt = std::uint64_t;

// kReal: float and double; kInteger: int64 and uint64; kComplex: Complex64 and Complex128.
enum Types { kReal = 1, kInteger = 2, kAny = 3, kComplex = 4, kInexact = 5, kAll = 7 };

// int32 is used only by the functors of `narrow` loops (backends/cpu/loops.h).
template <class T>
inline constexpr bool is_int =
    std::is_same_v<T, Int> || std::is_same_v<T, UInt> || std::is_same_v<T, std::int32_t>;
template <class T>
inline constexpr bool is_complex = core::kIsComplex<T>;

// T is an integer type; the sum is modulo 2^width.
template <class T>
T wrap_add(T a, T b) {
  using U = std::make_unsigned_t<T>;
  return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
}
template <class T>
T wrap_sub(T a, T b) {
  using U = std::make_unsigned_t<T>;
  return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
}
template <class T>
T wrap_mul(T a, T b) {
  using U = std::make_unsigned_t<T>;
  return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
}

inline Int to_int(double v) {  // saturated; NaN becomes 0
  if (v != v) return 0;
  if (v >= 0x1p63) return INT64_MAX;
  return v < -0x1p63 ? INT64_MIN : static_cast<Int>(v);
}

template <class T>
T limit(double v) {  // the nearest number of T, which is Int or UInt
  if constexpr (std::is_same_v<T, Int>) return to_int(v);
  if (!(v > 0)) return 0;
  return v >= 0x1p64 ? static_cast<T>(UINT64_MAX) : static_cast<T>(v);
}

// NaN if one argument is NaN.
template <class T>
T minimum(T a, T b) {
  return ((b < a) | (b != b)) ? b : a;
}
template <class T>
T maximum(T a, T b) {
  return ((b > a) | (b != b)) ? b : a;
}

}  // namespace teletensor::ops::scalar
