// Functors with three arguments; see scalar.h. A bool as the first argument is a condition.
#pragma once

#include "engine/ops/scalar/common.h"

namespace teletensor::ops::scalar {

struct Where {
  static constexpr std::string_view kOp = "where";
  static constexpr Types kTypes = kAll;
  template <class T>
  T operator()(bool condition, T a, T b) const {
    return condition ? a : b;
  }
};
struct Clamp {  // if min > max, max wins; NaN if one argument is NaN
  static constexpr std::string_view kOp = "clamp";
  static constexpr Types kTypes = kAny;
  template <class T>
  T operator()(T x, T low, T high) const {
    return minimum(maximum(x, low), high);
  }
};
// start + weight * (end - start), computed from the nearer end, so that weight 1 gives `end`
// exactly.
struct Lerp {
  static constexpr std::string_view kOp = "lerp";
  static constexpr Types kTypes = kInexact;
  template <class T>
  T operator()(T start, T end, T weight) const {
    const T difference = end - start;
    const T near_start = start + weight * difference;
    const T near_end = end - difference * (T(1) - weight);
    if constexpr (is_complex<T>) {
      return modulus(weight) < 0.5 ? near_start : near_end;
    } else {
      return abs(weight) < T(0.5) ? near_start : near_end;
    }
  }
};
struct Addcmul {
  static constexpr std::string_view kOp = "addcmul";
  static constexpr Types kTypes = kAll;
  double value = 1;
  Int integer = 1;
  Addcmul() = default;
  explicit Addcmul(const Attributes& a) : value(a.real(0)), integer(to_int(a.real(0))) {}
  template <class T>
  T operator()(T x, T a, T b) const {
    if constexpr (is_int<T>)
      return wrap_add(x, wrap_mul(static_cast<T>(integer), wrap_mul(a, b)));
    else
      return x + T(value) * a * b;
  }
};
struct Addcdiv {
  static constexpr std::string_view kOp = "addcdiv";
  static constexpr Types kTypes = kInexact;
  double value = 1;
  Addcdiv() = default;
  explicit Addcdiv(const Attributes& a) : value(a.real(0)) {}
  template <class T>
  T operator()(T x, T a, T b) const {
    return x + T(value) * a / b;
  }
};

}  // namespace teletensor::ops::scalar
