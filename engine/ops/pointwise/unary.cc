// Elementwise ops with one tensor operand. The functors are in scalar/unary.h, and the list of
// kernels is in backends/cpu/unary.cc.

#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/pointwise/elementwise.h"

namespace teletensor::ops {
namespace {

using core::DType;
using core::Status;

constexpr std::string_view kTest = "its result is a bool";

// Zeros in the layout of x, for step functions: PyTorch records them with a gradient of zeros.
void zero_vjp(VjpContext& c) { c.give(0, zeros(c.builder(), c.operand_layout(0))); }

OpDef test(std::string_view signature, std::string_view doc) {
  return {.signature = signature,
          .doc = doc,
          .infer = infer_test,
          .not_differentiable = kTest,
          .inplace = Inplace::kElementwise};
}

Var apply2(std::string_view op, const Var& a, const Var& b) { return binary(op, a, b); }

// g where the condition is true, and 0 elsewhere.
Var keep(const Var& condition, const Var& g) { return where(condition, g, Var(0.0)); }

Status infer_square(InferContext& c) {  // a bool gives int64, as in PyTorch
  const DType dtype = c.dtype(0);
  return infer_elementwise(c, dtype == DType::kBool ? DType::kI64 : dtype);
}

Status infer_bitwise_not(InferContext& c) {
  if (core::is_inexact(c.dtype(0))) {
    return c.unimplemented("is defined for integers and bool, not for " +
                           std::string(core::name_of(c.dtype(0))));
  }
  return infer_elementwise(c, c.dtype(0));
}

Status infer_abs(InferContext& c) {
  const DType dtype = c.dtype(0);
  if (dtype == DType::kBool) return c.not_defined_for(dtype);
  return infer_elementwise(c, core::real_of(dtype), dtype);
}

// The result is real, so the tangent is not a product with a complex derivative.
void abs_jvp(JvpContext& c) {
  const Var x = c.operand(0), t = c.tangent(0);
  const bool complex = core::is_complex(x.dtype());
  c.give(0, complex ? real(conj(unary("sgn", x)) * t) : t * unary("sign", x));
}

Status infer_gelu(InferContext& c) {
  const std::string_view mode = c.attributes.text(0);
  if (mode != "none" && mode != "tanh") {
    return c.fail("approximate must be 'none' or 'tanh', it is '" +
                  std::string(mode.substr(0, 40)) + "'");
  }
  return infer_floating(c);
}

std::vector<OpDef> unary_arithmetic() {
  return {
      row("neg(Tensor x) -> Tensor", "-x.", infer_number_no_bool,
          [](VjpContext& c) { c.give(0, -c.gradient()); }),
      row("positive(Tensor x) -> Tensor", "x itself, as a copy.", infer_number_no_bool,
          [](VjpContext& c) { c.give(0, c.gradient()); }),
      {.signature = "abs(Tensor x) -> Tensor",
       .doc = "The absolute value; of a complex number its distance from 0.",
       .infer = infer_abs,
       .vjp =
           [](VjpContext& c) {
             const Var x = c.operand(0);
             const bool complex = core::is_complex(x.dtype());
             c.give(0, c.gradient() * unary(complex ? "sgn" : "sign", x));
           },
       .saves = {kX},
       .inplace = Inplace::kElementwise,
       .jvp = abs_jvp},
      row("sign(Tensor x) -> Tensor", "-1, 0 or 1; 0 for NaN.", infer_same, zero_vjp),
      row("square(Tensor x) -> Tensor", "x * x.", infer_square,
          [](VjpContext& c) { c.give(0, c.gradient() * conj(c.operand(0) * Var(2.0))); }, {kX}),
      row("sqrt(Tensor x) -> Tensor", "The square root; NaN below 0.", infer_inexact,
          [](VjpContext& c) { c.give(0, c.gradient() / conj(c.result() * Var(2.0))); }, {kY}),
      row("rsqrt(Tensor x) -> Tensor", "1 / sqrt(x).", infer_inexact,
          [](VjpContext& c) {
            const Var y = c.result();
            c.give(0, c.gradient() * conj(y * y * y) * Var(-0.5));
          },
          {kY}),
      row("reciprocal(Tensor x) -> Tensor", "1 / x.", infer_inexact,
          [](VjpContext& c) {
            const Var y = c.result();
            c.give(0, -(c.gradient() * conj(y * y)));
          },
          {kY}),
      row("deg2rad(Tensor x) -> Tensor", "Degrees to radians.", infer_real,
          [](VjpContext& c) { c.give(0, unary("deg2rad", c.gradient())); }),
      row("rad2deg(Tensor x) -> Tensor", "Radians to degrees.", infer_real,
          [](VjpContext& c) { c.give(0, unary("rad2deg", c.gradient())); }),
      row("floor(Tensor x) -> Tensor", "Rounded down.", infer_no_bool, zero_vjp),
      row("ceil(Tensor x) -> Tensor", "Rounded up.", infer_no_bool, zero_vjp),
      row("round(Tensor x) -> Tensor", "Rounded to the nearest integer, halves to even.",
          infer_no_bool, zero_vjp),
      row("trunc(Tensor x) -> Tensor", "Rounded towards 0.", infer_no_bool, zero_vjp),
      row("frac(Tensor x) -> Tensor", "x - trunc(x).", infer_floating,
          [](VjpContext& c) { c.give(0, c.gradient()); }),
      {.signature = "bitwise_not(Tensor x) -> Tensor",
       .doc = "All bits inverted; of a bool its negation.",
       .infer = infer_bitwise_not,
       .not_differentiable = "defined for integers",
       .inplace = Inplace::kElementwise},
      test("logical_not(Tensor x) -> Tensor", "x == 0."),
      test("isnan(Tensor x) -> Tensor", "Is it NaN?"),
      test("isinf(Tensor x) -> Tensor", "Is it plus or minus infinity?"),
      test("isfinite(Tensor x) -> Tensor", "Is it neither infinite nor NaN?"),
  };
}

std::vector<OpDef> exponential() {
  return {
      row("exp(Tensor x) -> Tensor", "e to the power x.", infer_inexact,
          [](VjpContext& c) { c.give(0, c.gradient() * conj(c.result())); }, {kY}),
      row("exp2(Tensor x) -> Tensor", "2 to the power x.", infer_inexact,
          [](VjpContext& c) {
            c.give(0, c.gradient() * conj(c.result()) * Var(0.6931471805599453));
          },
          {kY}),
      row("expm1(Tensor x) -> Tensor", "exp(x) - 1, exact near 0.", infer_inexact,
          [](VjpContext& c) { c.give(0, c.gradient() * conj(c.result() + Var(1.0))); }, {kY}),
      row("log(Tensor x) -> Tensor", "The natural logarithm.", infer_inexact,
          [](VjpContext& c) { c.give(0, c.gradient() / conj(c.operand(0))); }, {kX}),
      row("log2(Tensor x) -> Tensor", "The logarithm to base 2.", infer_inexact,
          [](VjpContext& c) {
            c.give(0, c.gradient() / conj(c.operand(0) * Var(0.6931471805599453)));
          },
          {kX}),
      row("log10(Tensor x) -> Tensor", "The logarithm to base 10.", infer_inexact,
          [](VjpContext& c) {
            c.give(0, c.gradient() / conj(c.operand(0) * Var(2.302585092994046)));
          },
          {kX}),
      row("log1p(Tensor x) -> Tensor", "log(1 + x), exact near 0.", infer_inexact,
          [](VjpContext& c) { c.give(0, c.gradient() / conj(c.operand(0) + Var(1.0))); }, {kX}),
  };
}

std::vector<OpDef> trigonometric() {
  return {
      row("sin(Tensor x) -> Tensor", "The sine of x in radians.", infer_inexact,
          [](VjpContext& c) { c.give(0, c.gradient() * conj(unary("cos", c.operand(0)))); }, {kX}),
      row("cos(Tensor x) -> Tensor", "The cosine of x in radians.", infer_inexact,
          [](VjpContext& c) { c.give(0, -(c.gradient() * conj(unary("sin", c.operand(0))))); },
          {kX}),
      row("tan(Tensor x) -> Tensor", "The tangent of x in radians.", infer_inexact,
          [](VjpContext& c) {
            const Var y = c.result();
            c.give(0, c.gradient() * conj(y * y + Var(1.0)));
          },
          {kY}),
      row("asin(Tensor x) -> Tensor", "The inverse of sin, in radians.", infer_inexact,
          [](VjpContext& c) {
            const Var x = c.operand(0);
            c.give(0, c.gradient() * conj(unary("rsqrt", Var(1.0) - x * x)));
          },
          {kX}),
      row("acos(Tensor x) -> Tensor", "The inverse of cos, in radians.", infer_inexact,
          [](VjpContext& c) {
            const Var x = c.operand(0);
            c.give(0, -(c.gradient() * conj(unary("rsqrt", Var(1.0) - x * x))));
          },
          {kX}),
      row("atan(Tensor x) -> Tensor", "The inverse of tan, in radians.", infer_inexact,
          [](VjpContext& c) {
            const Var x = c.operand(0);
            c.give(0, c.gradient() / conj(x * x + Var(1.0)));
          },
          {kX}),
      row("sinh(Tensor x) -> Tensor", "The hyperbolic sine.", infer_inexact,
          [](VjpContext& c) { c.give(0, c.gradient() * conj(unary("cosh", c.operand(0)))); }, {kX}),
      row("cosh(Tensor x) -> Tensor", "The hyperbolic cosine.", infer_inexact,
          [](VjpContext& c) { c.give(0, c.gradient() * conj(unary("sinh", c.operand(0)))); }, {kX}),
      row("tanh(Tensor x) -> Tensor", "The hyperbolic tangent.", infer_inexact,
          [](VjpContext& c) { c.give(0, apply2("tanh_backward", c.gradient(), conj(c.result()))); },
          {kY}),
      row("asinh(Tensor x) -> Tensor", "The inverse of sinh.", infer_inexact,
          [](VjpContext& c) {
            const Var x = c.operand(0);
            c.give(0, c.gradient() * conj(unary("rsqrt", x * x + Var(1.0))));
          },
          {kX}),
      row("acosh(Tensor x) -> Tensor", "The inverse of cosh; NaN below 1.", infer_inexact,
          [](VjpContext& c) {
            const Var x = c.operand(0);
            c.give(0, c.gradient() * conj(unary("rsqrt", x * x - Var(1.0))));
          },
          {kX}),
      row("atanh(Tensor x) -> Tensor", "The inverse of tanh; NaN outside [-1, 1].", infer_inexact,
          [](VjpContext& c) {
            const Var x = c.operand(0);
            c.give(0, c.gradient() / conj(Var(1.0) - x * x));
          },
          {kX}),
      row("erf(Tensor x) -> Tensor", "The error function.", infer_real,
          [](VjpContext& c) {
            const Var x = c.operand(0);
            c.give(0, c.gradient() * unary("exp", -(x * x)) * Var(1.1283791670955126));
          },
          {kX}),
      row("erfc(Tensor x) -> Tensor", "1 - erf(x), exact for large x.", infer_real,
          [](VjpContext& c) {
            const Var x = c.operand(0);
            c.give(0, c.gradient() * unary("exp", -(x * x)) * Var(-1.1283791670955126));
          },
          {kX}),
  };
}

void gelu_vjp(VjpContext& c) {
  static const OpRef op("gelu_backward");
  c.give(0, apply(op, {c.gradient(), c.operand(0)}, c.attributes()));
}

void elu_vjp(VjpContext& c) {
  const Var x = c.operand(0), alpha(c.attributes().real(0));
  c.give(0, c.gradient() * where(binary("gt", x, Var(0.0)), Var(1.0), unary("exp", x) * alpha));
}

void selu_vjp(VjpContext& c) {
  const Var x = c.operand(0);
  c.give(0, c.gradient() * where(binary("gt", x, Var(0.0)), Var(1.0507009873554805),
                                 unary("exp", x) * Var(1.7580993408473766)));
}

void leaky_relu_vjp(VjpContext& c) {
  const Var x = c.operand(0), g = c.gradient();
  c.give(0, where(binary("gt", x, Var(0.0)), g, g * Var(c.attributes().real(0))));
}

void softplus_vjp(VjpContext& c) {
  const Var x = c.operand(0), g = c.gradient(), scaled = x * Var(c.attributes().real(0));
  c.give(0,
         where(binary("gt", scaled, Var(c.attributes().real(1))), g, g * unary("sigmoid", scaled)));
}

// 1 strictly between the limits, and 0 elsewhere.
Var inside(const Var& x, double low, double high) {
  return binary("logical_and", binary("gt", x, Var(low)), binary("lt", x, Var(high)));
}

void silu_vjp(VjpContext& c) {
  const Var x = c.operand(0), s = unary("sigmoid", x);
  c.give(0, c.gradient() * conj(s * (x * (Var(1.0) - s) + Var(1.0))));
}

void mish_vjp(VjpContext& c) {
  const Var x = c.operand(0), s = unary("sigmoid", x), t = unary("tanh", unary("softplus", x));
  c.give(0, c.gradient() * (t + x * s * (Var(1.0) - t * t)));
}

void hardswish_vjp(VjpContext& c) {
  const Var x = c.operand(0), g = c.gradient();
  const Var middle = g * (x / Var(3.0) + Var(0.5));
  c.give(0,
         where(binary("le", x, Var(-3.0)), Var(0.0), where(binary("lt", x, Var(3.0)), middle, g)));
}

std::vector<OpDef> activations() {
  return {
      row("sigmoid(Tensor x) -> Tensor", "1 / (1 + exp(-x)).", infer_inexact,
          [](VjpContext& c) {
            c.give(0, apply2("sigmoid_backward", c.gradient(), conj(c.result())));
          },
          {kY}),
      row("relu(Tensor x) -> Tensor", "max(x, 0).", infer_no_bool,
          [](VjpContext& c) { c.give(0, apply2("relu_backward", c.gradient(), c.result())); },
          {kY}),
      row("gelu(Tensor x, str approximate='none') -> Tensor",
          "x times the normal distribution function of x, or its 'tanh' approximation.", infer_gelu,
          gelu_vjp, {kX}),
      row("silu(Tensor x) -> Tensor", "x * sigmoid(x).", infer_inexact_only, silu_vjp, {kX}),
      row("mish(Tensor x) -> Tensor", "x * tanh(softplus(x)).", infer_floating, mish_vjp, {kX}),
      row("elu(Tensor x, float alpha=1.0) -> Tensor", "x above 0, alpha * (exp(x) - 1) below.",
          infer_floating, elu_vjp, {kX}),
      row("selu(Tensor x) -> Tensor",
          "elu with the scale 1.0507 and alpha 1.6733 that keep mean 0 and variance 1.",
          infer_floating, selu_vjp, {kX}),
      row("leaky_relu(Tensor x, float negative_slope=0.01) -> Tensor",
          "x above 0, negative_slope * x below.", infer_floating, leaky_relu_vjp, {kX}),
      row("softplus(Tensor x, float beta=1.0, float threshold=20.0) -> Tensor",
          "log(1 + exp(beta * x)) / beta; x itself where beta * x is above threshold.",
          infer_floating, softplus_vjp, {kX}),
      row("logsigmoid(Tensor x) -> Tensor", "log(sigmoid(x)), without overflow.", infer_floating,
          [](VjpContext& c) { c.give(0, c.gradient() * unary("sigmoid", -c.operand(0))); }, {kX}),
      row("hardtanh(Tensor x, float min_val=-1.0, float max_val=1.0) -> Tensor",
          "x limited to [min_val, max_val].", infer_no_bool,
          [](VjpContext& c) {
            c.give(0, keep(inside(c.operand(0), c.attributes().real(0), c.attributes().real(1)),
                           c.gradient()));
          },
          {kX}),
      row("relu6(Tensor x) -> Tensor", "x limited to [0, 6].", infer_no_bool,
          [](VjpContext& c) { c.give(0, keep(inside(c.operand(0), 0, 6), c.gradient())); }, {kX}),
      row("hardsigmoid(Tensor x) -> Tensor", "relu6(x + 3) / 6.", infer_floating,
          [](VjpContext& c) {
            c.give(0, keep(inside(c.operand(0), -3, 3), c.gradient() / Var(6.0)));
          },
          {kX}),
      row("hardswish(Tensor x) -> Tensor", "x * relu6(x + 3) / 6.", infer_floating, hardswish_vjp,
          {kX}),
  };
}

// ---------------------------------------------------------------- gradients as one functor

// d/dx of gelu_backward(g, x), composed from ops: the second derivative of x * Phi(x) is phi(x) (2
// - x^2).
void gelu_backward_vjp(VjpContext& c) {
  static const OpRef op("gelu_backward");
  const Var x = c.operand(1), gg = c.gradient();
  if (c.needs(0)) c.give(0, apply(op, {gg, x}, c.attributes()));
  if (!c.needs(1)) return;
  if (c.attributes().text(0) == "none") {
    const Var density = unary("exp", x * x * Var(-0.5)) * Var(0.3989422804014327);
    c.give(1, gg * c.operand(0) * density * (Var(2.0) - x * x));
    return;
  }
  // y = x/2 (1 + tanh u): y'' = u' sech^2 u + x/2 (u'' sech^2 u - 2 u'^2 tanh u sech^2 u).
  constexpr double kA = 0.7978845608028654, kB = 0.044715;
  const Var x2 = x * x, u = x * (x2 * Var(kB) + Var(1.0)) * Var(kA);
  const Var u1 = (x2 * Var(3 * kB) + Var(1.0)) * Var(kA), u2 = x * Var(6 * kA * kB);
  const Var t = unary("tanh", u), sech2 = Var(1.0) - t * t;
  c.give(1, gg * c.operand(0) * sech2 * (u1 + x * Var(0.5) * u2 - x * (u1 * u1 * t)));
}

OpDef helper(std::string_view signature, std::string_view doc, Infer infer, Vjp vjp,
             std::vector<Save> saves) {
  OpDef op = row(signature, doc, infer, vjp, std::move(saves));
  op.internal = true;
  return op;
}

std::vector<OpDef> gradients() {
  return {
      helper("relu_backward(Tensor g, Tensor y) -> Tensor", "g where y > 0 (or NaN), else 0.",
             infer_floating,
             [](VjpContext& c) {
               if (c.needs(0)) c.give(0, apply2("relu_backward", c.gradient(), c.operand(1)));
             },
             {{1, bit(0)}}),
      helper("tanh_backward(Tensor g, Tensor y) -> Tensor", "g * (1 - y * y).", infer_inexact_only,
             [](VjpContext& c) {
               const Var gg = c.gradient(), y = c.operand(1);
               if (c.needs(0)) c.give(0, apply2("tanh_backward", gg, conj(y)));
               if (c.needs(1)) c.give(1, gg * conj(c.operand(0) * y * Var(-2.0)));
             },
             {{0, bit(1)}, {1}}),
      helper("sigmoid_backward(Tensor g, Tensor y) -> Tensor", "g * (1 - y) * y.",
             infer_inexact_only,
             [](VjpContext& c) {
               const Var gg = c.gradient(), y = c.operand(1);
               if (c.needs(0)) c.give(0, apply2("sigmoid_backward", gg, conj(y)));
               if (c.needs(1)) c.give(1, gg * conj(c.operand(0) * (Var(1.0) - y * Var(2.0))));
             },
             {{0, bit(1)}, {1}}),
      helper("gelu_backward(Tensor g, Tensor x, str approximate) -> Tensor",
             "g times the derivative of gelu at x.", infer_floating, gelu_backward_vjp,
             {{0, bit(1)}, {1}}),
  };
}

}  // namespace

std::vector<OpDef> special_ops();  // special.cc

std::vector<OpDef> unary_ops() {
  std::vector<OpDef> all = special_ops();
  for (auto part : {unary_arithmetic, exponential, trigonometric, activations, gradients}) {
    for (OpDef& op : part()) all.push_back(std::move(op));
  }
  return all;
}

}  // namespace teletensor::ops
