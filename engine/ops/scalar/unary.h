// Functors with one argument; see scalar.h.
#pragma once

#include "engine/ops/scalar/common.h"

namespace teletensor::ops::scalar {

// ---------------------------------------------------------------- unary: arithmetic

struct Neg {
  static constexpr std::string_view kOp = "neg";
  static constexpr Types kTypes = kAll;
  template <class T>
  T operator()(T x) const {
    if constexpr (is_int<T>)
      return wrap_sub(T{0}, x);
    else
      return -x;
  }
};
struct Abs {
  static constexpr std::string_view kOp = "abs";
  static constexpr Types kTypes = kAll;
  template <class T>
  T operator()(T x) const {
    if constexpr (is_int<T>)
      return std::is_signed_v<T> && x < T{0} ? wrap_sub(T{0}, x) : x;
    else if constexpr (is_complex<T>)
      return T(modulus(x));  // the store takes the real part
    else
      return abs(x);
  }
};
struct Sign {
  static constexpr std::string_view kOp = "sign";
  static constexpr Types kTypes = kAny;
  template <class T>
  T operator()(T x) const {
    return static_cast<T>((T(0) < x) - (x < T(0)));
  }
};
struct Sgn {  // x / |x|, and 0 for 0
  static constexpr std::string_view kOp = "sgn";
  static constexpr Types kTypes = kAll;
  template <class T>
  T operator()(T x) const {
    if constexpr (is_complex<T>) {
      const auto size = modulus(x);
      return size == 0 ? T(0) : T(x.re / size, x.im / size);
    } else {
      return Sign()(x);
    }
  }
};
struct Conj {
  static constexpr std::string_view kOp = "conj";
  static constexpr Types kTypes = kComplex;
  template <class T>
  T operator()(T x) const {
    return core::conj(x);
  }
};
struct Imag {  // the store takes the real part
  static constexpr std::string_view kOp = "imag";
  static constexpr Types kTypes = kComplex;
  template <class T>
  T operator()(T x) const {
    return T(x.im);
  }
};
struct Angle {
  static constexpr std::string_view kOp = "angle";
  static constexpr Types kTypes = kInexact;
  static constexpr int kCost = 8;
  template <class T>
  T operator()(T x) const {
    if constexpr (is_complex<T>) {
      return T(argument(x));  // the store takes the real part
    } else {
      return x != x ? x : (x < T(0) ? T(3.141592653589793) : T(0));
    }
  }
};
struct Square {
  static constexpr std::string_view kOp = "square";
  static constexpr Types kTypes = kAll;
  template <class T>
  T operator()(T x) const {
    if constexpr (is_int<T>)
      return wrap_mul(x, x);
    else
      return x * x;
  }
};
struct Positive {
  static constexpr std::string_view kOp = "positive";
  static constexpr Types kTypes = kAll;
  template <class T>
  T operator()(T x) const {
    return x;
  }
};
struct Reciprocal {
  static constexpr std::string_view kOp = "reciprocal";
  static constexpr Types kTypes = kInexact;
  template <class T>
  T operator()(T x) const {
    return T(1) / x;
  }
};
struct Sqrt {
  static constexpr std::string_view kOp = "sqrt";
  static constexpr Types kTypes = kInexact;
  template <class T>
  T operator()(T x) const {
    return sqrt(x);
  }
};
struct Rsqrt {
  static constexpr std::string_view kOp = "rsqrt";
  static constexpr Types kTypes = kInexact;
  template <class T>
  T operator()(T x) const {
    return T(1) / sqrt(x);
  }
};
struct DegToRad {
  static constexpr std::string_view kOp = "deg2rad";
  static constexpr Types kTypes = kReal;
  template <class T>
  T operator()(T x) const {
    return x * T(0.017453292519943295);
  }
};
struct RadToDeg {
  static constexpr std::string_view kOp = "rad2deg";
  static constexpr Types kTypes = kReal;
  template <class T>
  T operator()(T x) const {
    return x * T(57.29577951308232);
  }
};

// ---------------------------------------------------------------- unary: rounding

struct Floor {
  static constexpr std::string_view kOp = "floor";
  static constexpr Types kTypes = kAny;
  template <class T>
  T operator()(T x) const {
    if constexpr (is_int<T>)
      return x;
    else
      return floor(x);
  }
};
struct Ceil {
  static constexpr std::string_view kOp = "ceil";
  static constexpr Types kTypes = kAny;
  template <class T>
  T operator()(T x) const {
    if constexpr (is_int<T>)
      return x;
    else
      return ceil(x);
  }
};
struct Round {  // half to even
  static constexpr std::string_view kOp = "round";
  static constexpr Types kTypes = kAny;
  template <class T>
  T operator()(T x) const {
    if constexpr (is_int<T>)
      return x;
    else
      return rint(x);
  }
};
struct Trunc {
  static constexpr std::string_view kOp = "trunc";
  static constexpr Types kTypes = kAny;
  template <class T>
  T operator()(T x) const {
    if constexpr (is_int<T>)
      return x;
    else
      return trunc(x);
  }
};
struct Frac {
  static constexpr std::string_view kOp = "frac";
  static constexpr Types kTypes = kReal;
  template <class T>
  T operator()(T x) const {
    return x - trunc(x);
  }
};

// ---------------------------------------------------------------- unary: tests

struct IsNan {
  static constexpr std::string_view kOp = "isnan";
  static constexpr Types kTypes = kAll;
  template <class T>
  bool operator()(T x) const {
    return x != x;
  }
};
struct IsInf {
  static constexpr std::string_view kOp = "isinf";
  static constexpr Types kTypes = kAll;
  template <class T>
  bool operator()(T x) const {
    if constexpr (is_int<T>)
      return false;
    else if constexpr (is_complex<T>)
      return (*this)(x.re) | (*this)(x.im);
    else
      return abs(x) == T(__builtin_inf());
  }
};
struct IsFinite {
  static constexpr std::string_view kOp = "isfinite";
  static constexpr Types kTypes = kAll;
  template <class T>
  bool operator()(T x) const {
    if constexpr (is_int<T>)
      return true;
    else if constexpr (is_complex<T>)
      return (*this)(x.re) & (*this)(x.im);
    else
      return abs(x) < T(__builtin_inf());
  }
};
struct LogicalNot {
  static constexpr std::string_view kOp = "logical_not";
  static constexpr Types kTypes = kAll;
  template <class T>
  bool operator()(T x) const {
    return x == T(0);
  }
};
struct BitwiseNot {  // for integers; bools use LogicalNot
  static constexpr std::string_view kOp = "bitwise_not";
  static constexpr Types kTypes = kInteger;
  template <class T>
  T operator()(T x) const {
    return ~x;
  }
};

// ---------------------------------------------------------------- unary: functions of libm

#define TT_LIBM_FUNCTOR(Type, function, cost, types)   \
  struct Type {                                        \
    static constexpr std::string_view kOp = #function; \
    static constexpr Types kTypes = types;             \
    static constexpr bool kLibm = true;                \
    static constexpr int kCost = cost;                 \
    template <class T>                                 \
    T operator()(T x) const {                          \
      return scalar::function(x);                      \
    }                                                  \
  }
TT_LIBM_FUNCTOR(Exp, exp, 3, kInexact);
TT_LIBM_FUNCTOR(Exp2, exp2, 3, kInexact);
TT_LIBM_FUNCTOR(Expm1, expm1, 4, kInexact);
TT_LIBM_FUNCTOR(Log, log, 3, kInexact);
TT_LIBM_FUNCTOR(Log2, log2, 3, kInexact);
TT_LIBM_FUNCTOR(Log10, log10, 3, kInexact);
TT_LIBM_FUNCTOR(Log1p, log1p, 4, kInexact);
TT_LIBM_FUNCTOR(Sin, sin, 4, kInexact);
TT_LIBM_FUNCTOR(Cos, cos, 4, kInexact);
TT_LIBM_FUNCTOR(Tan, tan, 5, kInexact);
TT_LIBM_FUNCTOR(Asin, asin, 5, kInexact);
TT_LIBM_FUNCTOR(Acos, acos, 5, kInexact);
TT_LIBM_FUNCTOR(Atan, atan, 5, kInexact);
TT_LIBM_FUNCTOR(Sinh, sinh, 5, kInexact);
TT_LIBM_FUNCTOR(Cosh, cosh, 5, kInexact);
TT_LIBM_FUNCTOR(Tanh, tanh, 4, kInexact);
TT_LIBM_FUNCTOR(Asinh, asinh, 6, kInexact);
TT_LIBM_FUNCTOR(Acosh, acosh, 6, kInexact);
TT_LIBM_FUNCTOR(Atanh, atanh, 6, kInexact);
TT_LIBM_FUNCTOR(Erf, erf, 6, kReal);
TT_LIBM_FUNCTOR(Erfc, erfc, 8, kReal);
#undef TT_LIBM_FUNCTOR

// ---------------------------------------------------------------- unary: activations

struct Sigmoid {
  static constexpr std::string_view kOp = "sigmoid";
  static constexpr Types kTypes = kInexact;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 4;
  template <class T>
  T operator()(T x) const {
    return T(1) / (T(1) + exp(-x));
  }
};
struct Silu {
  static constexpr std::string_view kOp = "silu";
  static constexpr Types kTypes = kInexact;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 4;
  template <class T>
  T operator()(T x) const {
    return x / (T(1) + exp(-x));
  }
};
struct Relu {
  static constexpr std::string_view kOp = "relu";
  static constexpr Types kTypes = kAny;
  template <class T>
  T operator()(T x) const {
    return x < T(0) ? T(0) : x;
  }
};
// x * Phi(x).
struct Gelu {
  static constexpr std::string_view kOp = "gelu";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 6;
  template <class T>
  T operator()(T x) const {
    return x * T(0.5) * (T(1) + fast_erf(x * T(0.7071067811865475244)));
  }
};
// The approximation of Hendrycks and Gimpel: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
struct GeluTanh {
  static constexpr std::string_view kOp = "gelu";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 5;
  template <class T>
  T operator()(T x) const {
    const T inner = T(0.7978845608028654) * (x + T(0.044715) * (x * x * x));
    return x * T(0.5) * (T(1) + tanh(inner));
  }
};
struct Elu {
  static constexpr std::string_view kOp = "elu";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 4;
  double alpha = 1;
  Elu() = default;
  explicit Elu(const Attributes& a) : alpha(a.real(0)) {}
  template <class T>
  T operator()(T x) const {
    const T below = T(alpha) * expm1(x);
    return x > T(0) ? x : below;
  }
};
// Source: Klambauer et al., 2017.
struct Selu {
  static constexpr std::string_view kOp = "selu";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 4;
  template <class T>
  T operator()(T x) const {
    constexpr double kScale = 1.0507009873554804934, kAlpha = 1.6732632423543772848;
    const T below = T(kScale * kAlpha) * expm1(x);
    return x > T(0) ? T(kScale) * x : below;
  }
};
struct LeakyRelu {
  static constexpr std::string_view kOp = "leaky_relu";
  static constexpr Types kTypes = kReal;
  double slope = 0.01;
  LeakyRelu() = default;
  explicit LeakyRelu(const Attributes& a) : slope(a.real(0)) {}
  template <class T>
  T operator()(T x) const {
    const T below = x * T(slope);
    return x > T(0) ? x : below;
  }
};
struct Softplus {
  static constexpr std::string_view kOp = "softplus";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 7;
  double beta = 1, threshold = 20;
  Softplus() = default;
  explicit Softplus(const Attributes& a) : beta(a.real(0)), threshold(a.real(1)) {}
  template <class T>
  T operator()(T x) const {
    const T scaled = x * T(beta);
    const T soft = log1p(exp(scaled)) / T(beta);
    return scaled > T(threshold) ? x : soft;
  }
};
struct LogSigmoid {
  static constexpr std::string_view kOp = "logsigmoid";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 7;
  template <class T>
  T operator()(T x) const {
    const T low = x < T(0) ? x : T(0);
    return low - log1p(exp(-abs(x)));
  }
};
struct Mish {
  static constexpr std::string_view kOp = "mish";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 10;
  template <class T>
  T operator()(T x) const {
    const T soft = log1p(exp(x));
    return x * tanh(x > T(20) ? x : soft);
  }
};
struct Hardtanh {
  static constexpr std::string_view kOp = "hardtanh";
  static constexpr Types kTypes = kAny;
  double low = -1, high = 1;
  Hardtanh() = default;
  explicit Hardtanh(const Attributes& a) : low(a.real(0)), high(a.real(1)) {}
  template <class T>
  T operator()(T x) const {
    if constexpr (is_int<T>) {
      return minimum(maximum(x, limit<T>(low)), limit<T>(high));
    } else {
      return minimum(maximum(x, T(low)), T(high));
    }
  }
};
struct Relu6 {
  static constexpr std::string_view kOp = "relu6";
  static constexpr Types kTypes = kAny;
  template <class T>
  T operator()(T x) const {
    return minimum(maximum(x, T(0)), T(6));
  }
};
struct Hardsigmoid {
  static constexpr std::string_view kOp = "hardsigmoid";
  static constexpr Types kTypes = kReal;
  template <class T>
  T operator()(T x) const {
    return minimum(maximum(x + T(3), T(0)), T(6)) / T(6);
  }
};
struct Hardswish {
  static constexpr std::string_view kOp = "hardswish";
  static constexpr Types kTypes = kReal;
  template <class T>
  T operator()(T x) const {
    return x * minimum(maximum(x + T(3), T(0)), T(6)) / T(6);
  }
};

}  // namespace teletensor::ops::scalar
