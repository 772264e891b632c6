// Functors with two arguments; see scalar.h.
#pragma once

#include "engine/ops/scalar/common.h"

namespace teletensor::ops::scalar {

// ---------------------------------------------------------------- arithmetic

struct Add {
  static constexpr std::string_view kOp = "add";
  static constexpr Types kTypes = kAll;
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (is_int<T>)
      return wrap_add(a, b);
    else
      return a + b;
  }
};
struct Sub {
  static constexpr std::string_view kOp = "sub";
  static constexpr Types kTypes = kAll;
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (is_int<T>)
      return wrap_sub(a, b);
    else
      return a - b;
  }
};
struct AddScaled {  // a + alpha * b
  static constexpr std::string_view kOp = "add";
  static constexpr Types kTypes = kAll;
  double alpha = 1;
  Int integer = 1;
  AddScaled() = default;
  explicit AddScaled(double a) : alpha(a), integer(to_int(a)) {}
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (is_int<T>)
      return wrap_add(a, wrap_mul(static_cast<T>(integer), b));
    else
      return a + T(alpha) * b;
  }
};
struct Mul {
  static constexpr std::string_view kOp = "mul";
  static constexpr Types kTypes = kAll;
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (is_int<T>)
      return wrap_mul(a, b);
    else
      return a * b;
  }
};
struct Div {
  static constexpr std::string_view kOp = "div";
  static constexpr Types kTypes = kInexact;
  template <class T>
  T operator()(T a, T b) const {
    return a / b;
  }
};

// Integer division by 0 gives 0, and the minimum divided by -1 wraps. The op refuses a division by
// 0 before.
inline Int div_int(Int a, Int b) {
  if (b == 0) return 0;
  return b == -1 ? wrap_sub(Int{0}, a) : a / b;
}
inline Int mod_int(Int a, Int b) { return b == 0 || b == -1 ? 0 : a % b; }
inline UInt div_int(UInt a, UInt b) { return b == 0 ? 0 : a / b; }
inline UInt mod_int(UInt a, UInt b) { return b == 0 ? 0 : a % b; }

struct DivTrunc {
  static constexpr std::string_view kOp = "div";
  static constexpr Types kTypes = kAny;
  static constexpr int kCost = 2;
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (is_int<T>)
      return div_int(a, b);
    else
      return trunc(a / b);
  }
};
// Functors that need fmod take it as a parameter: AnyFmod, or NearFmod for arguments for which
// fmod_is_near() is true (its loops vectorise, and the bits are the same).
struct AnyFmod {
  template <class T>
  static T of(T a, T b) {
    return fmod(a, b);
  }
};
struct NearFmod {
  template <class T>
  static T of(T a, T b) {
    return fmod_near(a, b);
  }
};
// The quotient is rounded down. For floats it is that of Python's divmod, so that x == floor_divide
// * y + remainder nearly holds.
template <class M>
struct FloorDivideBy {
  static constexpr std::string_view kOp = "floor_divide";
  static constexpr Types kTypes = kAny;
  static constexpr int kCost = 10;
  using Near = FloorDivideBy<NearFmod>;
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_same_v<T, UInt>) {
      return div_int(a, b);
    } else if constexpr (is_int<T>) {
      const Int quotient = div_int(a, b), rest = mod_int(a, b);
      return rest != 0 && (rest < 0) != (b < 0) ? quotient - 1 : quotient;
    } else {
      const T exact = a / b, mod = M::of(a, b);
      T quotient = (a - mod) / b;
      const bool above = (mod != T(0)) & ((b < T(0)) != (mod < T(0)));
      quotient -= above ? T(1) : T(0);
      const T down = floor(quotient);
      const T nearest = quotient - down > T(0.5) ? down + T(1) : down;
      const T result = quotient == T(0) ? copysign(T(0), exact) : nearest;
      return b == T(0) ? exact : result;
    }
  }
};
using FloorDivide = FloorDivideBy<AnyFmod>;
template <class M>
struct RemainderBy {  // has the sign of b, like Python's %
  static constexpr std::string_view kOp = "remainder";
  static constexpr Types kTypes = kAny;
  static constexpr int kCost = 10;
  using Near = RemainderBy<NearFmod>;
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_same_v<T, UInt>) {
      return mod_int(a, b);
    } else if constexpr (is_int<T>) {
      const Int rest = mod_int(a, b);
      return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    } else {
      const T mod = M::of(a, b), other = mod + b;
      const bool wrong_sign = (mod != T(0)) & ((b < T(0)) != (mod < T(0)));
      return wrong_sign ? other : mod;
    }
  }
};
using Remainder = RemainderBy<AnyFmod>;
template <class M>
struct FmodBy {  // has the sign of a, like C's %
  static constexpr std::string_view kOp = "fmod";
  static constexpr Types kTypes = kAny;
  static constexpr int kCost = 10;
  using Near = FmodBy<NearFmod>;
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (is_int<T>) {
      return mod_int(a, b);
    } else {
      return M::of(a, b);
    }
  }
};
using Fmod = FmodBy<AnyFmod>;
struct Pow {
  static constexpr std::string_view kOp = "pow";
  static constexpr Types kTypes = kAll;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 8;
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (is_int<T>) {
      if constexpr (std::is_same_v<T, Int>) {
        if (b < 0) return a == 1 ? 1 : (a == -1 ? (b % 2 != 0 ? -1 : 1) : 0);
      }
      T result = 1;
      for (; b != 0; b >>= 1) {
        if (b & 1) result = wrap_mul(result, a);
        a = wrap_mul(a, a);
      }
      return result;
    } else {
      return pow(a, b);
    }
  }
};
struct Cube {
  static constexpr std::string_view kOp = "pow";
  static constexpr Types kTypes = kInexact;
  template <class T>
  T operator()(T x) const {
    return x * x * x;
  }
};

struct Maximum {
  static constexpr std::string_view kOp = "maximum";
  static constexpr Types kTypes = kAny;
  template <class T>
  T operator()(T a, T b) const {
    return maximum(a, b);
  }
};
struct Minimum {
  static constexpr std::string_view kOp = "minimum";
  static constexpr Types kTypes = kAny;
  template <class T>
  T operator()(T a, T b) const {
    return minimum(a, b);
  }
};
struct Fmax {  // if one argument is NaN, returns the other argument
  static constexpr std::string_view kOp = "fmax";
  static constexpr Types kTypes = kAny;
  template <class T>
  T operator()(T a, T b) const {
    return a > b || b != b ? a : b;
  }
};
struct Fmin {
  static constexpr std::string_view kOp = "fmin";
  static constexpr Types kTypes = kAny;
  template <class T>
  T operator()(T a, T b) const {
    return a < b || b != b ? a : b;
  }
};
struct Atan2 {
  static constexpr std::string_view kOp = "atan2";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 8;
  template <class T>
  T operator()(T a, T b) const {
    return atan2(a, b);
  }
};
struct Hypot {
  static constexpr std::string_view kOp = "hypot";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 6;
  template <class T>
  T operator()(T a, T b) const {
    return hypot(a, b);
  }
};
struct Copysign {
  static constexpr std::string_view kOp = "copysign";
  static constexpr Types kTypes = kReal;
  template <class T>
  T operator()(T a, T b) const {
    return copysign(a, b);
  }
};

// ---------------------------------------------------------------- complex numbers of two reals

struct MakeComplex {
  static constexpr std::string_view kOp = "complex";
  static constexpr Types kTypes = kComplex;
  template <class T>
  T operator()(T a, T b) const {
    return T(a.re, b.re);
  }
};
struct Polar {
  static constexpr std::string_view kOp = "polar";
  static constexpr Types kTypes = kComplex;
  static constexpr int kCost = 10;
  template <class T>
  T operator()(T size, T angle) const {
    return T(size.re * std::cos(angle.re), size.re * std::sin(angle.re));
  }
};

// ---------------------------------------------------------------- comparison and logic

struct Eq {
  static constexpr std::string_view kOp = "eq";
  static constexpr Types kTypes = kAll;
  template <class T>
  bool operator()(T a, T b) const {
    return a == b;
  }
};
struct Ne {
  static constexpr std::string_view kOp = "ne";
  static constexpr Types kTypes = kAll;
  template <class T>
  bool operator()(T a, T b) const {
    return a != b;
  }
};
struct Lt {
  static constexpr std::string_view kOp = "lt";
  static constexpr Types kTypes = kAny;
  template <class T>
  bool operator()(T a, T b) const {
    return a < b;
  }
};
struct Le {
  static constexpr std::string_view kOp = "le";
  static constexpr Types kTypes = kAny;
  template <class T>
  bool operator()(T a, T b) const {
    return a <= b;
  }
};
struct Gt {
  static constexpr std::string_view kOp = "gt";
  static constexpr Types kTypes = kAny;
  template <class T>
  bool operator()(T a, T b) const {
    return a > b;
  }
};
struct Ge {
  static constexpr std::string_view kOp = "ge";
  static constexpr Types kTypes = kAny;
  template <class T>
  bool operator()(T a, T b) const {
    return a >= b;
  }
};
struct LogicalAnd {
  static constexpr std::string_view kOp = "logical_and";
  static constexpr Types kTypes = kAll;
  template <class T>
  bool operator()(T a, T b) const {
    return (a != T(0)) & (b != T(0));
  }
};
struct LogicalOr {
  static constexpr std::string_view kOp = "logical_or";
  static constexpr Types kTypes = kAll;
  template <class T>
  bool operator()(T a, T b) const {
    return (a != T(0)) | (b != T(0));
  }
};
struct LogicalXor {
  static constexpr std::string_view kOp = "logical_xor";
  static constexpr Types kTypes = kAll;
  template <class T>
  bool operator()(T a, T b) const {
    return (a != T(0)) != (b != T(0));
  }
};

// ---------------------------------------------------------------- bits

struct BitwiseAnd {
  static constexpr std::string_view kOp = "bitwise_and";
  static constexpr Types kTypes = kInteger;
  template <class T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct BitwiseOr {
  static constexpr std::string_view kOp = "bitwise_or";
  static constexpr Types kTypes = kInteger;
  template <class T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct BitwiseXor {
  static constexpr std::string_view kOp = "bitwise_xor";
  static constexpr Types kTypes = kInteger;
  template <class T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};
// A shift by a negative count, or by the width or more, gives 0 or the sign.
struct ShiftLeft {
  static constexpr std::string_view kOp = "bitwise_left_shift";
  static constexpr Types kTypes = kInteger;
  template <class T>
  T operator()(T a, T b) const {
    using U = std::make_unsigned_t<T>;
    const bool fits = static_cast<U>(b) < 8 * sizeof(T);
    return fits ? static_cast<T>(static_cast<U>(a) << (fits ? b : 0)) : 0;
  }
};
struct ShiftRight {
  static constexpr std::string_view kOp = "bitwise_right_shift";
  static constexpr Types kTypes = kInteger;
  template <class T>
  T operator()(T a, T b) const {
    const bool fits = static_cast<std::make_unsigned_t<T>>(b) < 8 * sizeof(T);
    if constexpr (std::is_same_v<T, UInt>) return fits ? a >> (fits ? b : 0) : 0;
    return a >> (fits ? b : T{8 * sizeof(T) - 1});
  }
};

// ---------------------------------------------------------------- gradients of activations

struct ReluBackward {  // arguments: (g, result)
  static constexpr std::string_view kOp = "relu_backward";
  static constexpr Types kTypes = kReal;
  template <class T>
  T operator()(T g, T y) const {
    return y <= T(0) ? T(0) : g;
  }
};
struct TanhBackward {  // arguments: (g, result)
  static constexpr std::string_view kOp = "tanh_backward";
  static constexpr Types kTypes = kInexact;
  template <class T>
  T operator()(T g, T y) const {
    return g * (T(1) - y * y);
  }
};
struct SigmoidBackward {  // arguments: (g, result)
  static constexpr std::string_view kOp = "sigmoid_backward";
  static constexpr Types kTypes = kInexact;
  template <class T>
  T operator()(T g, T y) const {
    return g * ((T(1) - y) * y);
  }
};

struct GeluBackward {  // arguments: (g, x); g * (Phi(x) + x * phi(x))
  static constexpr std::string_view kOp = "gelu_backward";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 9;
  template <class T>
  T operator()(T g, T x) const {
    const T cdf = T(0.5) * (T(1) + fast_erf(x * T(0.7071067811865475244)));
    const T density = exp(x * x * T(-0.5)) * T(0.3989422804014327);
    return g * (cdf + x * density);
  }
};
struct GeluTanhBackward {
  static constexpr std::string_view kOp = "gelu_backward";
  static constexpr Types kTypes = kReal;
  static constexpr bool kLibm = true;
  static constexpr int kCost = 6;
  template <class T>
  T operator()(T g, T x) const {
    constexpr double kA = 0.7978845608028654, kB = 0.044715;
    const T t = tanh(T(kA) * (x + T(kB) * (x * x * x)));
    const T inner = T(kA) * (T(1) + T(3 * kB) * (x * x));
    return g * (T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * inner);
  }
};

}  // namespace teletensor::ops::scalar
