// Special functions and rare pointwise ops. The functors are in scalar/special.h, the kernels in
// backends/cpu/special.cc. Derivatives are PyTorch's.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/pointwise/elementwise.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::DType;
using core::Status;

constexpr double kTwoOverRootPi = 1.1283791670955126, kHalfRootPi = 0.88622692545275801;

// ---------------------------------------------------------------- inference

Status infer_same_dtypes(InferContext& c) {
  DType first{};
  bool any = false;
  for (const OperandInfo& operand : c.operands) {
    if (!operand.tensor()) continue;
    if (any && operand.layout->dtype != first) {
      return c.fail(
          "is not defined for tensors with different dtypes: " + std::string(core::name_of(first)) +
          " and " + std::string(core::name_of(operand.layout->dtype)));
    }
    first = operand.layout->dtype;
    any = true;
  }
  return infer_same(c);
}

Status infer_integers(InferContext& c) {
  const DType dtype = result_type(c);
  if (!core::is_integral(dtype)) {
    return c.unimplemented("is defined for integers, not for " + std::string(core::name_of(dtype)));
  }
  return infer_elementwise(c, dtype);
}

Status infer_polygamma(InferContext& c) {
  const std::int64_t n = c.attributes.integer(0);
  if (n < 0) return c.fail("n must not be negative, it is " + std::to_string(n));
  return infer_real(c);
}

Status infer_frexp(InferContext& c) {
  TT_RETURN_IF_ERROR(infer_floating(c));
  const core::Geometry geometry = c.results[0].geometry;
  c.add_result(DType::kI32, geometry);
  return {};
}

// ---------------------------------------------------------------- derivatives

Var x_of(VjpContext& c) { return c.operand(0); }
Var equals(const Var& a, double b) { return binary("eq", a, Var(b)); }
Var both(const Var& a, const Var& b) { return binary("logical_and", a, b); }

// a + by, for a tensor or a number.
Var plus(const Var& a, double by) {
  return a.is_number() ? Var(a.number().as_double() + by) : a + Var(by);
}

Var polygamma(std::int64_t n, const Var& x) {
  static const OpRef op("polygamma");
  return apply(op, {x}, {Attribute::of(n)});
}

void polygamma_vjp(VjpContext& c) {
  const std::int64_t n = c.attributes().integer(0);
  c.give(0, c.gradient() * polygamma(n < INT64_MAX ? n + 1 : n, x_of(c)));
}

// I_1(x) / x, which is 1/2 at 0.
Var i1_over_x(const Var& x, const Var& i1) {
  return where(equals(x, 0), Var(0.5), i1 / where(equals(x, 0), Var(1.0), x));
}

// The derivative of a Bessel function B1 of order one is B0 - B1 / x, where B0 is the function of
// order zero. `at_zero` is the derivative at x = 0.
void order_one_vjp(VjpContext& c, std::string_view order_zero, double at_zero) {
  const Var x = x_of(c), zero = equals(x, 0);
  const Var slope = unary(order_zero, x) - c.result() / where(zero, Var(1.0), x);
  c.give(0, c.gradient() * where(zero, Var(at_zero), slope));
}

void i1_vjp(VjpContext& c) {
  const Var x = x_of(c);
  c.give(0, c.gradient() * (unary("i0", x) - i1_over_x(x, c.result())));
}
void i0e_vjp(VjpContext& c) {
  const Var x = x_of(c);
  c.give(0, c.gradient() * (unary("special_i1e", x) - unary("sign", x) * c.result()));
}
void i1e_vjp(VjpContext& c) {
  const Var x = x_of(c), y = c.result();
  c.give(0, c.gradient() * (unary("special_i0e", x) - i1_over_x(x, y) - unary("sign", x) * y));
}

void sinc_vjp(VjpContext& c) {
  constexpr double kPi = 3.14159265358979323846;
  const Var x = x_of(c), zero = equals(x, 0), safe = where(zero, Var(1.0), x);
  const Var slope = (unary("cos", safe * Var(kPi)) - unary("sinc", safe)) / safe;
  c.give(0, c.gradient() * where(zero, x * Var(-kPi * kPi / 3), slope));
}

void logit_vjp(VjpContext& c) {
  const Var x = x_of(c), slope = c.gradient() / (x * (Var(1.0) - x));
  const bool limited = c.attributes().has(0);
  const double eps = limited ? c.attributes().real(0) : 0;
  const Var inside = both(binary("ge", x, Var(eps)), binary("le", x, Var(1 - eps)));
  c.give(0, where(inside, slope, Var(limited ? 0.0 : __builtin_nan(""))));
}

void entr_vjp(VjpContext& c) { c.give(0, c.gradient() * (Var(-1.0) - unary("log", x_of(c)))); }

void frexp_vjp(VjpContext& c) {
  c.give(0, c.gradient(0) / unary("exp2", cast(c.result(1), c.operand_layout(0).dtype)));
}

// The gradient of x log(y) by x is 0 where the value is 0 by definition.
template <bool kShifted>
void xlogy_vjp(VjpContext& c) {
  const Var x = c.operand(0), y = c.operand(1), g = c.gradient();
  if (c.needs(0)) {
    // g log(y) by the op itself: a gradient of 0 stays 0 where y has no logarithm.
    const Var slope = binary(kShifted ? "special_xlog1py" : "xlogy", g, y);
    const Var below =
        binary("le", y.is_tensor() ? y : x * Var(0.0) + y, Var(kShifted ? -1.0 : 0.0));
    c.give(0, where(both(equals(x, 0), below), Var(0.0), slope));
  }
  if (c.needs(1)) c.give(1, g * x / (kShifted ? plus(y, 1) : y));
}

template <bool kBinary>
void logaddexp_vjp(VjpContext& c) {
  const Var a = c.operand(0), b = c.operand(1), g = c.gradient();
  // Equal infinities share the gradient, as equal numbers do. Only infinities are replaced, because
  // the second derivative at equal numbers is not 0.
  const Var infinite = both(binary("eq", a, b), unary("isinf", a));
  const Var distance = where(infinite, Var(0.0), a - b);
  const Var share = unary("sigmoid", distance * Var(kBinary ? 0.6931471805599453 : 1.0));
  if (c.needs(0)) c.give(0, g * share);
  if (c.needs(1)) c.give(1, g * (Var(1.0) - share));
}

// d/dx of P(a, x) is x^(a-1) e^-x / gamma(a); there is no derivative by a.
template <int kSign>
void igamma_vjp(VjpContext& c) {
  if (!c.needs(1)) return;
  const Var a = c.operand(0), x = c.operand(1);
  const Var lgamma = unary("lgamma", a.is_tensor() ? a : x * Var(0.0) + a);
  const Var slope = unary("exp", plus(a, -1) * unary("log", x) - x - lgamma);
  c.give(1, c.gradient() * slope * Var(static_cast<double>(kSign)));
}

void zeta_vjp(VjpContext& c) {
  if (!c.needs(1)) return;
  const Var s = c.operand(0), q = c.operand(1);
  c.give(1, c.gradient() * -(s * binary("special_zeta", plus(s, 1), q)));
}

// The derivative of sin(x) / x. Its terms cancel near 0, where it is a series.
void spherical_j0_vjp(VjpContext& c) {
  const Var x = x_of(c), square = x * x;
  Var series(1.0);
  for (const double divisor : {180.0, 130.0, 88.0, 54.0, 28.0, 10.0}) {
    series = Var(1.0) - square * Var(1 / divisor) * series;
  }
  const Var near = binary("lt", square, Var(0.25));
  const Var far = (unary("cos", x) - c.result()) / where(near, Var(1.0), x);
  c.give(0, c.gradient() * where(near, x * Var(-1.0 / 3) * series, far));
}

// The derivative of a polynomial of degree n is `factor` * n times `lower` of degree n - 1. Degrees
// are truncated to integers.
void degree_vjp(VjpContext& c, std::string_view lower, double factor) {
  if (!c.needs(0)) return;
  const Var x = x_of(c), n = c.operand(1);
  const Var scale = n.is_number() ? Var(std::trunc(n.number().as_double()) * factor)
                                  : unary("trunc", n) * Var(factor);
  c.give(0, c.gradient() * (binary(lower, x, plus(n, -1)) * scale));
}

std::vector<OpDef> one_argument() {
  return {
      row("lgamma(Tensor x) -> Tensor", "The logarithm of the size of the gamma function.",
          infer_real, [](VjpContext& c) { c.give(0, c.gradient() * unary("digamma", x_of(c))); },
          {kX}),
      row("digamma(Tensor x) -> Tensor", "The derivative of lgamma.", infer_real,
          [](VjpContext& c) { c.give(0, c.gradient() * polygamma(1, x_of(c))); }, {kX}),
      row("polygamma(Tensor x, int n) -> Tensor", "The n-th derivative of digamma.",
          infer_polygamma, polygamma_vjp, {kX}),
      row("erfinv(Tensor x) -> Tensor", "The inverse of erf; NaN outside [-1, 1].", infer_real,
          [](VjpContext& c) {
            const Var y = c.result();
            c.give(0, c.gradient() * unary("exp", y * y) * Var(kHalfRootPi));
          },
          {kY}),
      row("special_erfcx(Tensor x) -> Tensor", "exp(x * x) * erfc(x).", infer_real,
          [](VjpContext& c) {
            c.give(0, c.gradient() * (x_of(c) * c.result() * Var(2.0) - Var(kTwoOverRootPi)));
          },
          {kX, kY}),
      row("special_ndtr(Tensor x) -> Tensor", "The standard normal distribution function.",
          infer_real,
          [](VjpContext& c) {
            const Var x = x_of(c);
            c.give(0, c.gradient() * unary("exp", x * x * Var(-0.5)) * Var(0.3989422804014327));
          },
          {kX}),
      row("special_ndtri(Tensor x) -> Tensor", "The inverse of ndtr; NaN outside [0, 1].",
          infer_real,
          [](VjpContext& c) {
            const Var y = c.result();
            c.give(0, c.gradient() * unary("exp", y * y * Var(0.5)) * Var(2.5066282746310002));
          },
          {kY}),
      row("special_log_ndtr(Tensor x) -> Tensor", "log(ndtr(x)), exact far below 0.", infer_real,
          [](VjpContext& c) {
            const Var scaled = unary("special_erfcx", x_of(c) * Var(-0.70710678118654752));
            c.give(0, c.gradient() / scaled * Var(0.79788456080286536));
          },
          {kX}),
      row("i0(Tensor x) -> Tensor", "The modified Bessel function of the first kind, order 0.",
          infer_real, [](VjpContext& c) { c.give(0, c.gradient() * unary("special_i1", x_of(c))); },
          {kX}),
      row("special_i0e(Tensor x) -> Tensor", "exp(-|x|) * i0(x).", infer_real, i0e_vjp, {kX, kY}),
      row("special_i1(Tensor x) -> Tensor",
          "The modified Bessel function of the first kind, order 1.", infer_real, i1_vjp, {kX, kY}),
      row("special_i1e(Tensor x) -> Tensor", "exp(-|x|) * i1(x).", infer_real, i1e_vjp, {kX, kY}),
      row("sinc(Tensor x) -> Tensor", "sin(pi x) / (pi x); 1 at 0.", infer_real, sinc_vjp, {kX}),
      row("logit(Tensor x, float? eps=None) -> Tensor",
          "log(x / (1 - x)), of x limited to [eps, 1 - eps] if eps is given.", infer_real,
          logit_vjp, {kX}),
      row("special_entr(Tensor x) -> Tensor", "-x * log(x); 0 at 0, -inf below.", infer_real,
          entr_vjp, {kX}),
      row("nan_to_num(Tensor x, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor",
          "x with NaN replaced by nan (0), infinities by posinf and neginf (the dtype's limits).",
          infer_same,
          [](VjpContext& c) {
            c.give(0, where(unary("isfinite", x_of(c)), c.gradient(), Var(0.0)));
          },
          {kX}),
      {.signature = "frexp(Tensor x) -> (Tensor mantissa, Tensor exponent)",
       .doc = "x as mantissa * 2 ** exponent (int32), 0.5 <= |mantissa| < 1.",
       .infer = infer_frexp,
       .vjp = frexp_vjp,
       .saves = {{kResult + 1}},
       .tangent = Tangent::kDiagonal,
       .batching = Batching::kElementwise},
      plain("signbit(Tensor x) -> Tensor", "Is the sign bit set? True for -0.0.",
            infer_ordered_test, "its result is a bool"),
  };
}

std::vector<OpDef> bessel() {
  return {
      row("special_bessel_j0(Tensor x) -> Tensor",
          "The Bessel function of the first kind, order 0.", infer_real,
          [](VjpContext& c) { c.give(0, -(c.gradient() * unary("special_bessel_j1", x_of(c)))); },
          {kX}),
      row("special_bessel_j1(Tensor x) -> Tensor",
          "The Bessel function of the first kind, order 1.", infer_real,
          [](VjpContext& c) { order_one_vjp(c, "special_bessel_j0", 0.5); }, {kX, kY}),
      row("special_bessel_y0(Tensor x) -> Tensor",
          "The Bessel function of the second kind, order 0.", infer_real,
          [](VjpContext& c) { c.give(0, -(c.gradient() * unary("special_bessel_y1", x_of(c)))); },
          {kX}),
      row("special_bessel_y1(Tensor x) -> Tensor",
          "The Bessel function of the second kind, order 1.", infer_real,
          [](VjpContext& c) {
            order_one_vjp(c, "special_bessel_y0", std::numeric_limits<double>::infinity());
          },
          {kX, kY}),
      row("special_modified_bessel_k0(Tensor x) -> Tensor",
          "The modified Bessel function of the second kind, order 0.", infer_real,
          [](VjpContext& c) {
            c.give(0, -(c.gradient() * unary("special_modified_bessel_k1", x_of(c))));
          },
          {kX}),
      row("special_modified_bessel_k1(Tensor x) -> Tensor",
          "The modified Bessel function of the second kind, order 1.", infer_real,
          [](VjpContext& c) {
            c.give(0, -(c.gradient() *
                        (unary("special_modified_bessel_k0", x_of(c)) + c.result() / x_of(c))));
          },
          {kX, kY}),
      row("special_scaled_modified_bessel_k0(Tensor x) -> Tensor",
          "exp(x) * modified_bessel_k0(x).", infer_real,
          [](VjpContext& c) {
            c.give(0, c.gradient() *
                          (c.result() - unary("special_scaled_modified_bessel_k1", x_of(c))));
          },
          {kX, kY}),
      row("special_scaled_modified_bessel_k1(Tensor x) -> Tensor",
          "exp(x) * modified_bessel_k1(x).", infer_real,
          [](VjpContext& c) {
            const Var x = x_of(c), y = c.result();
            c.give(0, c.gradient() * (y - unary("special_scaled_modified_bessel_k0", x) - y / x));
          },
          {kX, kY}),
      row("special_spherical_bessel_j0(Tensor x) -> Tensor", "sin(x) / x; 1 at 0.", infer_real,
          spherical_j0_vjp, {kX, kY}),
      refusing(plain("special_airy_ai(Tensor x) -> Tensor",
                     "The Airy function Ai; its derivative is not implemented.", infer_real)),
  };
}

std::vector<OpDef> two_arguments() {
  return {
      row("xlogy(Operand x, Operand other) -> Tensor", "x * log(other); 0 where x is 0.",
          infer_real, xlogy_vjp<false>, kBoth),
      row("special_xlog1py(Operand x, Operand other) -> Tensor",
          "x * log1p(other); 0 where x is 0.", infer_real, xlogy_vjp<true>, kBoth),
      row("logaddexp(Tensor x, Tensor other) -> Tensor", "log(exp(x) + exp(other)).",
          infer_floating, logaddexp_vjp<false>, kBoth),
      row("logaddexp2(Tensor x, Tensor other) -> Tensor", "log2(2 ** x + 2 ** other).",
          infer_floating, logaddexp_vjp<true>, kBoth),
      refusing(
          row("igamma(Operand x, Operand other) -> Tensor",
              "The regularised lower incomplete gamma function P(x, other); its derivative by x is "
              "not implemented.",
              infer_real, igamma_vjp<1>, {{0, bit(1)}, {1, bit(1)}}),
          bit(0)),
      refusing(
          row("igammac(Operand x, Operand other) -> Tensor",
              "The regularised upper incomplete gamma function Q(x, other); its derivative by x is "
              "not implemented.",
              infer_real, igamma_vjp<-1>, {{0, bit(1)}, {1, bit(1)}}),
          bit(0)),
      refusing(row("special_zeta(Operand x, Operand other) -> Tensor",
                   "Hurwitz' zeta function: the sum of (k + other) ** -x; its derivative by x is "
                   "not implemented.",
                   infer_real, zeta_vjp, {{0, bit(1)}, {1, bit(1)}}),
               bit(0)),
      row("nextafter(Tensor x, Tensor other) -> Tensor",
          "The next value of the dtype after x, towards other.", infer_floating,
          [](VjpContext& c) {
            if (c.needs(0)) {
              const Var equal = binary("eq", c.operand(0), c.operand(1));
              c.give(0, where(equal, Var(0.0), c.gradient()));
            }
            if (c.needs(1)) c.give(1, zeros(c.builder(), c.operand_layout(1)));
          },
          {{0, bit(0)}, {1, bit(0)}}),
      refusing(plain("heaviside(Tensor x, Tensor values) -> Tensor",
                     "0 where x < 0, values where x is 0, 1 where x > 0.", infer_same_dtypes)),
      plain("gcd(Tensor x, Tensor other) -> Tensor", "The greatest common divisor, not negative.",
            infer_integers, "defined for integers"),
      plain("lcm(Tensor x, Tensor other) -> Tensor", "The least common multiple, not negative.",
            infer_integers, "defined for integers"),
  };
}

// Polynomials of degree n. Those whose derivative is a multiple of a polynomial of degree n - 1
// have it. All others, and the derivative by n, are refused.
#define TT_POLYNOMIAL(name, text)                                    \
  refusing(plain("special_" name "(Operand x, Operand n) -> Tensor", \
                 text "; its derivative is not implemented.", infer_real))
#define TT_POLYNOMIAL_WITH(name, text, vjp)                                                   \
  refusing(row("special_" name "(Operand x, Operand n) -> Tensor", text ".", infer_real, vjp, \
               {{0, bit(0)}, {1, bit(0)}}),                                                   \
           bit(1))
std::vector<OpDef> polynomials() {
  return {
      TT_POLYNOMIAL_WITH("chebyshev_polynomial_t",
                         "Chebyshev's polynomial of the first kind, T_n(x)",
                         [](VjpContext& c) { degree_vjp(c, "special_chebyshev_polynomial_u", 1); }),
      TT_POLYNOMIAL("chebyshev_polynomial_u", "Chebyshev's polynomial of the second kind, U_n(x)"),
      TT_POLYNOMIAL("chebyshev_polynomial_v", "Chebyshev's polynomial of the third kind, V_n(x)"),
      TT_POLYNOMIAL("chebyshev_polynomial_w", "Chebyshev's polynomial of the fourth kind, W_n(x)"),
      TT_POLYNOMIAL_WITH(
          "shifted_chebyshev_polynomial_t", "T_n(2 x - 1)",
          [](VjpContext& c) { degree_vjp(c, "special_shifted_chebyshev_polynomial_u", 2); }),
      TT_POLYNOMIAL("shifted_chebyshev_polynomial_u", "U_n(2 x - 1)"),
      TT_POLYNOMIAL("shifted_chebyshev_polynomial_v", "V_n(2 x - 1)"),
      TT_POLYNOMIAL("shifted_chebyshev_polynomial_w", "W_n(2 x - 1)"),
      TT_POLYNOMIAL_WITH("hermite_polynomial_h", "The physicist's Hermite polynomial H_n(x)",
                         [](VjpContext& c) { degree_vjp(c, "special_hermite_polynomial_h", 2); }),
      TT_POLYNOMIAL_WITH("hermite_polynomial_he", "The probabilist's Hermite polynomial He_n(x)",
                         [](VjpContext& c) { degree_vjp(c, "special_hermite_polynomial_he", 1); }),
      TT_POLYNOMIAL("laguerre_polynomial_l",
                    "Laguerre's polynomial L_n(x); NaN above degree 1000000"),
      TT_POLYNOMIAL("legendre_polynomial_p",
                    "Legendre's polynomial P_n(x); NaN above degree 1000000"),
  };
}
#undef TT_POLYNOMIAL_WITH
#undef TT_POLYNOMIAL

}  // namespace

std::vector<OpDef> special_ops() {
  std::vector<OpDef> all;
  for (auto part : {one_argument, bessel, two_arguments, polynomials}) {
    for (OpDef& op : part()) all.push_back(std::move(op));
  }
  return all;
}

}  // namespace teletensor::ops
