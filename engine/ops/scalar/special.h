// Functors of special functions and of rare pointwise ops; they follow the protocol of scalar.h
// (ops whose loops vectorise are in scalar/rare.h). They are called once per element and may
// branch. If a functor takes only double, 16- and 32-bit floats are computed in double and rounded
// once.
#pragma once

#include <numeric>

#include "engine/core/half.h"
#include "engine/ops/scalar/bessel.h"
#include "engine/ops/scalar/error.h"
#include "engine/ops/scalar/gamma.h"
#include "engine/ops/scalar/polynomials.h"

namespace teletensor::ops::scalar {

// ---------------------------------------------------------------- one argument

#define TT_SPECIAL_1(Type, name, cost, expression)           \
  struct Type {                                              \
    static constexpr std::string_view kOp = name;            \
    static constexpr Types kTypes = kReal;                   \
    static constexpr int kCost = cost;                       \
    static constexpr bool kLibm = true;                      \
    double operator()(double x) const { return expression; } \
  }
TT_SPECIAL_1(Lgamma, "lgamma", 60, std::isinf(x) ? kInfinity : log_gamma(x));
TT_SPECIAL_1(Digamma, "digamma", 100, digamma(x));
TT_SPECIAL_1(Erfcx, "special_erfcx", 100, erfcx(x));
TT_SPECIAL_1(LogNdtr, "special_log_ndtr", 150, log_ndtr(x));
TT_SPECIAL_1(I0, "i0", 200, bessel_i(0, x, false));
TT_SPECIAL_1(I0e, "special_i0e", 200, bessel_i(0, x, true));
TT_SPECIAL_1(I1, "special_i1", 200, bessel_i(1, x, false));
TT_SPECIAL_1(I1e, "special_i1e", 200, bessel_i(1, x, true));
TT_SPECIAL_1(BesselJ0, "special_bessel_j0", 150, bessel_j(0, x));
TT_SPECIAL_1(BesselJ1, "special_bessel_j1", 150, bessel_j(1, x));
TT_SPECIAL_1(BesselY0, "special_bessel_y0", 150, bessel_y(0, x));
TT_SPECIAL_1(BesselY1, "special_bessel_y1", 150, bessel_y(1, x));
TT_SPECIAL_1(BesselK0, "special_modified_bessel_k0", 1500, bessel_k(0, x, false));
TT_SPECIAL_1(BesselK1, "special_modified_bessel_k1", 1500, bessel_k(1, x, false));
TT_SPECIAL_1(ScaledK0, "special_scaled_modified_bessel_k0", 1500, bessel_k(0, x, true));
TT_SPECIAL_1(ScaledK1, "special_scaled_modified_bessel_k1", 1500, bessel_k(1, x, true));
TT_SPECIAL_1(SphericalJ0, "special_spherical_bessel_j0", 60, spherical_bessel_j0(x));
TT_SPECIAL_1(AiryAi, "special_airy_ai", 500, airy_ai(x));
#undef TT_SPECIAL_1

struct Polygamma {
  static constexpr std::string_view kOp = "polygamma";
  static constexpr Types kTypes = kReal;
  static constexpr int kCost = 500;
  static constexpr bool kLibm = true;
  double n = 0;
  Polygamma() = default;
  explicit Polygamma(const Attributes& a) : n(static_cast<double>(a.integer(0))) {}
  double operator()(double x) const { return polygamma(n, x); }
};
// ---------------------------------------------------------------- two arguments

#define TT_SPECIAL_2(Type, name, cost, expression)                     \
  struct Type {                                                        \
    static constexpr std::string_view kOp = name;                      \
    static constexpr Types kTypes = kReal;                             \
    static constexpr int kCost = cost;                                 \
    static constexpr bool kLibm = true;                                \
    double operator()(double x, double y) const { return expression; } \
  }
TT_SPECIAL_2(Zeta, "special_zeta", 500, zeta(x, y));
TT_SPECIAL_2(ChebyshevT, "special_chebyshev_polynomial_t", 100, chebyshev(Chebyshev::kT, x, y));
TT_SPECIAL_2(ChebyshevU, "special_chebyshev_polynomial_u", 100, chebyshev(Chebyshev::kU, x, y));
TT_SPECIAL_2(ChebyshevV, "special_chebyshev_polynomial_v", 100, chebyshev(Chebyshev::kV, x, y));
TT_SPECIAL_2(ChebyshevW, "special_chebyshev_polynomial_w", 100, chebyshev(Chebyshev::kW, x, y));
TT_SPECIAL_2(ShiftedT, "special_shifted_chebyshev_polynomial_t", 100,
             chebyshev(Chebyshev::kT, x + x - 1, y));
TT_SPECIAL_2(ShiftedU, "special_shifted_chebyshev_polynomial_u", 100,
             chebyshev(Chebyshev::kU, x + x - 1, y));
TT_SPECIAL_2(ShiftedV, "special_shifted_chebyshev_polynomial_v", 100,
             chebyshev(Chebyshev::kV, x + x - 1, y));
TT_SPECIAL_2(ShiftedW, "special_shifted_chebyshev_polynomial_w", 100,
             chebyshev(Chebyshev::kW, x + x - 1, y));
TT_SPECIAL_2(Laguerre, "special_laguerre_polynomial_l", 100, laguerre(x, y));
TT_SPECIAL_2(Legendre, "special_legendre_polynomial_p", 100, legendre(x, y));
#undef TT_SPECIAL_2

template <bool kUpper>
struct IgammaOf {
  static constexpr std::string_view kOp = kUpper ? "igammac" : "igamma";
  static constexpr Types kTypes = kReal;
  static constexpr int kCost = 500;
  static constexpr bool kLibm = true;
  template <class T>
  T operator()(T a, T x) const {
    return static_cast<T>(regularised_gamma(a, x, kUpper, sizeof(T) == 8 ? 1e-17 : 3e-10));
  }
};
using Igamma = IgammaOf<false>;
using Igammac = IgammaOf<true>;

template <bool kPhysicist>
struct HermiteOf {
  static constexpr std::string_view kOp =
      kPhysicist ? "special_hermite_polynomial_h" : "special_hermite_polynomial_he";
  static constexpr Types kTypes = kReal;
  static constexpr int kCost = 100;
  template <class T>
  T operator()(T x, T n) const {
    return static_cast<T>(hermite(x, n, kPhysicist, sizeof(T) == 8 ? 512 : 128));
  }
};
using HermiteH = HermiteOf<true>;
using HermiteHe = HermiteOf<false>;

struct Heaviside {
  static constexpr std::string_view kOp = "heaviside";
  static constexpr Types kTypes = kAny;
  template <class T>
  T operator()(T x, T y) const {
    return x == T(0) ? y : static_cast<T>(x > T(0));
  }
};
// The next representable number after x in the direction of y. If the computation is for a 16-bit
// type, only the values of that type count.
struct NextAfter {
  static constexpr std::string_view kOp = "nextafter";
  static constexpr Types kTypes = kReal;
  static constexpr int kCost = 10;
  core::DType dtype = core::DType::kF32;
  template <class T>
  T operator()(T x, T y) const {
    if (x != x || y != y) return static_cast<T>(kNaN);
    if (x == y) return y;
    if (dtype == core::DType::kF16) return static_cast<T>(step<core::Half>(x, y));
    if (dtype == core::DType::kBF16) return static_cast<T>(step<core::BFloat16>(x, y));
    return std::nextafter(x, y);
  }

 private:
  template <class H, class T>
  static float step(T x, T y) {
    H from(x);
    if (x == T(0)) {
      from.bits = y > T(0) ? 1 : 0x8001;
    } else {
      const bool outwards = (x < y) == (x > T(0));
      from.bits = static_cast<std::uint16_t>(outwards ? from.bits + 1 : from.bits - 1);
    }
    return static_cast<float>(from);
  }
};

inline UInt magnitude(UInt x) { return x; }
inline UInt magnitude(Int x) {
  return x < 0 ? UInt(0) - static_cast<UInt>(x) : static_cast<UInt>(x);
}

struct Gcd {
  static constexpr std::string_view kOp = "gcd";
  static constexpr Types kTypes = kInteger;
  static constexpr int kCost = 60;
  template <class T>
  T operator()(T x, T y) const {
    return static_cast<T>(std::gcd(magnitude(x), magnitude(y)));
  }
};
struct Lcm {
  static constexpr std::string_view kOp = "lcm";
  static constexpr Types kTypes = kInteger;
  static constexpr int kCost = 80;
  template <class T>
  T operator()(T x, T y) const {
    const UInt divisor = std::gcd(magnitude(x), magnitude(y));
    if (divisor == 0) return 0;
    const T wrapped = wrap_mul(static_cast<T>(magnitude(x) / divisor), y);
    return wrapped < 0 ? wrap_sub(T{0}, wrapped) : wrapped;
  }
};

}  // namespace teletensor::ops::scalar
