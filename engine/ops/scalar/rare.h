// Functors of rarer pointwise ops whose loops vectorise; they follow the protocol of scalar.h. If a
// functor takes only double, 16- and 32-bit floats are computed in double and rounded once.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "engine/ops/scalar/error.h"
#include "engine/ops/scalar/scalar.h"

namespace teletensor::ops::scalar {

struct Entr {
  static constexpr std::string_view kOp = "special_entr";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 5;
  template <class T>
  T operator()(T x) const {
    const T inside = -x * log(x), outside = x < T(0) ? -T(kInfinity) : T(0);
    const T known = x > T(0) ? inside : outside;
    return x != x ? x : known;
  }
};
// sin(pi x) / (pi x), where the argument of sin is reduced exactly to a quarter turn.
struct Sinc {
  static constexpr std::string_view kOp = "sinc";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 8;
  double operator()(double x) const {
    const double turn = x - 2 * rint(x * 0.5), size = abs(turn);
    const double wave = copysign(sin(kPi * (size > 0.5 ? 1 - size : size)), turn);
    const double ratio = wave / (kPi * x);
    return x == 0 ? 1.0 : ratio;
  }
};
struct Ndtr {
  static constexpr std::string_view kOp = "special_ndtr";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 12;
  double operator()(double x) const { return 0.5 * erfc(-x * kRootHalf); }
};
struct Ndtri {
  static constexpr std::string_view kOp = "special_ndtri";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 20;
  double operator()(double p) const { return normal_quantile<true>(p - 0.5, p < 0.5 ? p : 1 - p); }
};
struct Erfinv {
  static constexpr std::string_view kOp = "erfinv";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 20;
  template <class T>
  double operator()(T x) const {  // a float32 is never so near to 1 that the tail is "far"
    const double v = x;
    return normal_quantile<sizeof(T) == 8>(v * 0.5, (1 - abs(v)) * 0.5) * kRootHalf;
  }
};
struct Logit {  // if eps is given, x is first limited to [eps, 1 - eps]
  static constexpr std::string_view kOp = "logit";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 6;
  double eps = -1;
  Logit() = default;
  explicit Logit(const Attributes& a) : eps(a.has(0) ? a.real(0) : -1) {}
  template <class T>
  T operator()(T x) const {
    const bool limited = eps >= 0;
    const T low = static_cast<T>(eps), high = T(1) - low;
    const T below = x > high ? high : x, inside = x < low ? low : below;
    const T y = limited ? inside : x;
    return log(y / (T(1) - y));
  }
};
struct NanToNum {
  static constexpr std::string_view kOp = "nan_to_num";
  static constexpr Types kTypes = kAny;
  double nan = 0, above = kInfinity, below = -kInfinity;
  template <class T>
  T operator()(T x) const {
    if constexpr (is_int<T>) {
      return x;
    } else {
      const T low = x == -T(kInfinity) ? static_cast<T>(below) : x;
      const T finite = x == T(kInfinity) ? static_cast<T>(above) : low;
      return x != x ? static_cast<T>(nan) : finite;
    }
  }
};
struct Signbit {
  static constexpr std::string_view kOp = "signbit";
  static constexpr Types kTypes = kAny;
  template <class T>
  bool operator()(T x) const {
    if constexpr (is_int<T>) {
      return x < 0;
    } else {
      using Bits = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
      return std::bit_cast<Bits>(x) < 0;
    }
  }
};

// x = mantissa * 2^exponent with 0.5 <= |mantissa| < 1. 0, infinities and NaN are their own
// mantissa, with exponent 0.
template <class T>
struct Parts {
  using Bits = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  static constexpr int kDigits = sizeof(T) == 4 ? 23 : 52, kBias = sizeof(T) == 4 ? 126 : 1022;
  static constexpr Bits kField = (Bits(1) << (sizeof(T) == 4 ? 8 : 11)) - 1;
  T mantissa, exponent;

  explicit Parts(T x) {
    const T least = sizeof(T) == 4 ? T(0x1p-126) : T(0x1p-1022);
    const bool small = abs(x) < least;  // scales subnormals so that they become normal
    const T scaled = small ? x * (sizeof(T) == 4 ? T(0x1p25) : T(0x1p54)) : x;
    const Bits bits = std::bit_cast<Bits>(scaled);
    const Bits field = (bits >> kDigits) & kField;
    const bool plain = (x == T(0)) | (field == kField);
    const Bits half = (bits & ~(kField << kDigits)) | (Bits(kBias) << kDigits);
    const T cut = std::bit_cast<T>(half);
    mantissa = plain ? x : cut;
    const Bits power = field - kBias - (small ? (sizeof(T) == 4 ? 25 : 54) : 0);
    exponent = plain ? T(0) : static_cast<T>(power);
  }
};
struct Mantissa {
  static constexpr std::string_view kOp = "frexp";
  static constexpr Types kTypes = kReal;
  static constexpr int kCost = 2;
  template <class T>
  T operator()(T x) const {
    return Parts<T>(x).mantissa;
  }
};
struct Exponent {
  static constexpr std::string_view kOp = "frexp";
  static constexpr Types kTypes = kReal;
  static constexpr int kCost = 2;
  template <class T>
  T operator()(T x) const {
    return Parts<T>(x).exponent;
  }
};

struct Xlogy {
  static constexpr std::string_view kOp = "xlogy";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 5;
  template <class T>
  T operator()(T x, T y) const {
    const T product = x * log(y), known = x == T(0) ? T(0) : product;
    return y != y ? y : known;
  }
};
struct Xlog1py {
  static constexpr std::string_view kOp = "special_xlog1py";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 6;
  template <class T>
  T operator()(T x, T y) const {
    const T product = x * log1p(y), known = x == T(0) ? T(0) : product;
    return y != y ? y : known;
  }
};
// The logarithm of the sum of two powers of `base` (e or 2).
template <bool kBinary>
struct LogAddOf {
  static constexpr std::string_view kOp = kBinary ? "logaddexp2" : "logaddexp";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 8;
  template <class T>
  T operator()(T x, T y) const {
    const T most = x > y ? x : y;
    const T gap = x == y ? T(0) : -abs(x - y);  // 0 also for equal infinities
    if constexpr (kBinary) return most + log1p(exp2(gap)) * T(1.4426950408889634074);
    return most + log1p(exp(gap));
  }
};
using LogAddExp = LogAddOf<false>;
using LogAddExp2 = LogAddOf<true>;

}  // namespace teletensor::ops::scalar
