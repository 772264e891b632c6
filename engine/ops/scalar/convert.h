// Conversions between element types and compute types. A float becomes an integer by truncation,
// saturated to 64 bits, with NaN as 0 (for u64, negative values wrap through int64); integers wrap;
// a bool is true if the value is not zero; a complex number becomes a real one by taking its real
// part. See scalar.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "engine/core/half.h"
#include "engine/ops/scalar/common.h"

namespace teletensor::ops::scalar {

using core::BFloat16;
using core::Half;

struct Bool {
  std::uint8_t byte;  // a client may have uploaded any byte
};

inline std::uint64_t truncate_unsigned(double value) {
  if (!(value >= 0x1p63)) return static_cast<std::uint64_t>(to_int(value));
  if (value >= 0x1p64) return UINT64_MAX;
  return static_cast<std::uint64_t>(value);
}

template <class A, class T>
A to_compute(T value) {
  if constexpr (std::is_same_v<A, T>) {
    return value;
  } else if constexpr (core::kIsComplex<T> && core::kIsComplex<A>) {
    using Part = decltype(A::re);
    return A(static_cast<Part>(value.re), static_cast<Part>(value.im));
  } else if constexpr (core::kIsComplex<T>) {
    return to_compute<A>(value.re);
  } else if constexpr (core::kIsComplex<A>) {
    return A(to_compute<decltype(A::re)>(value));
  } else if constexpr (std::is_same_v<T, Bool>) {
    return static_cast<A>(value.byte != 0);
  } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return to_compute<A>(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<T> && std::is_same_v<A, std::uint64_t>) {
    return truncate_unsigned(value);
  } else if constexpr (std::is_floating_point_v<T> && std::is_integral_v<A>) {
    return static_cast<A>(to_int(value));
  } else {
    return static_cast<A>(value);
  }
}

template <class T, class A>
T from_compute(A value) {
  if constexpr (std::is_same_v<T, Bool>) {
    return Bool{value != A(0)};
  } else if constexpr (core::kIsComplex<A> || core::kIsComplex<T>) {
    if constexpr (std::is_same_v<A, T>) {
      return value;
    } else if constexpr (!core::kIsComplex<T>) {
      return from_compute<T>(value.re);
    } else {
      return to_compute<T>(value);
    }
  } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return T(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<A> && std::is_same_v<T, std::uint64_t>) {
    return truncate_unsigned(value);
  } else if constexpr (std::is_floating_point_v<A> && std::is_integral_v<T>) {
    return static_cast<T>(to_int(value));
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace teletensor::ops::scalar
