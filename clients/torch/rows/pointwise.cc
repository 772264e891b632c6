#include <cmath>

#include "clients/torch/compose.h"

namespace teletensor::torch {
namespace {

using core::Attribute;

Var no_tensor(Call& c, const Var& like, int value) {
  return ops::full(c.session, like.shape(), core::Number::of_int(value), like.dtype(), c.device);
}

// ---- Activations with formulas of their own

// x > 0 ? scale x : scale alpha (exp(input_scale x) - 1)
void elu(Call& c) {
  const Var x = c.var("self");
  const double alpha = c.real("alpha"), scale = c.real("scale"), slope = c.real("input_scale");
  const Var low = ops::unary("expm1", slope == 1 ? x : x * slope) * (alpha * scale);
  c.give(ops::where(ops::binary("gt", x, 0), scale == 1 ? x : x * scale, low));
}
void elu_backward(Call& c) {
  const Var g = c.var("grad_output"), x = c.var("self_or_result");
  const double alpha = c.real("alpha"), scale = c.real("scale"), slope = c.real("input_scale");
  const Var low = c.flag("is_result") ? g * (x + alpha * scale) * slope
                                      : g * ops::unary("exp", x * slope) * (alpha * scale * slope);
  c.give(ops::where(ops::binary("gt", x, 0), g * scale, low));
}
void leaky_relu_backward(Call& c) {
  const Var g = c.var("grad_output"), x = c.var("self");
  c.give(ops::where(ops::binary("gt", x, 0), g, g * c.real("negative_slope")));
}
void threshold(Call& c) {
  const Var x = c.var("self");
  c.give(ops::where(ops::binary("le", x, c.var("threshold")), c.var("value"), x));
}
void threshold_backward(Call& c) {
  static const ops::OpRef relu_backward("relu_backward");
  const Var g = c.var("grad_output"), x = c.var("self");
  if (c.real("threshold") == 0) return c.give(c.run(relu_backward, {g, x}));
  c.give(ops::where(ops::binary("le", x, c.var("threshold")), 0, g));
}
void log_sigmoid_forward(Call& c) {
  const Var x = c.var("self");
  c.give(ops::unary("logsigmoid", x));
  c.give_blank(x.dtype());
}
void prelu(Call& c) {
  const Var x = c.var("self");
  c.give(ops::where(ops::binary("gt", x, 0), x, c.var("weight") * x));
}
void prelu_backward(Call& c) {
  const Var g = c.var("grad_output"), x = c.var("self"), weight = c.var("weight");
  const Var above = ops::binary("gt", x, 0);
  c.give(ops::where(above, g, weight * g));
  c.give(ops::where(above, no_tensor(c, g, 0), x * g));
}
void is_infinity(Call& c) {
  const Var x = c.var("self");
  if (x.absent()) return;
  if (core::is_complex(x.dtype())) return c.fail(core::unimplemented("a complex dtype"));
  if (!core::is_floating(x.dtype())) {
    return c.give(filled(c, x.shape(), core::Number::of_bool(false), DType::kBool));
  }
  const double wanted = c.name().starts_with("ispos") ? INFINITY : -INFINITY;
  c.give(ops::binary("eq", x, wanted));
}
// Elements within lambd of 0 become 0; softshrink moves the rest by it. NaN stays.
void shrink(Call& c) {
  const Var x = c.var("self");
  const double edge = c.real("lambd");
  const bool soft = c.name().starts_with("soft");
  const Var within = ops::binary("le", ops::unary("abs", x), edge);
  c.give(ops::where(within, 0, soft ? x - ops::unary("sign", x) * edge : x));
}
void shrink_backward(Call& c) {
  const Var g = c.var(c.absent("grad_out") ? "grad_output" : "grad_out"), x = c.var("self");
  c.give(ops::where(ops::binary("le", ops::unary("abs", x), c.real("lambd")), 0, g));
}
// To a number of decimals, in the arithmetic of the dtype.
void round_decimals(Call& c) {
  const Var x = c.var("self");
  const std::int64_t decimals = c.integer("decimals");
  if (!core::is_floating(x.dtype())) return c.fail(core::unimplemented("not a floating dtype"));
  const double scale = std::pow(10.0, static_cast<double>(std::abs(decimals)));
  if (decimals == 0) return c.give(ops::unary("round", x));
  c.give(decimals > 0 ? ops::unary("round", x * scale) / scale
                      : ops::unary("round", x / scale) * scale);
}
// A slope for each element below 0, drawn while training. `noise` takes the slopes.
void random_leaky(Call& c) {
  static const ops::OpRef uniform("uniform");
  const Var x = c.var("self");
  if (x.absent()) return;
  const double lower = c.real("lower"), upper = c.real("upper");
  const Var below = ops::binary("le", x, 0);
  if (!c.flag("training")) {
    return c.give(ops::where(below, x * ((lower + upper) / 2), x));
  }
  const Var slopes =
      c.run(uniform, {x}, c.with_random({Attribute::of(lower), Attribute::of(upper)}));
  const Var noise = ops::where(below, slopes, 1);
  c.write(c.var("noise"), noise);
  c.give(x * noise);
}
std::pair<Var, Var> halves(Call& c, const Var& x, std::int64_t dim) {
  static const ops::OpRef slice("slice");
  if (x.absent()) return {};
  const int at = static_cast<int>(dim < 0 ? dim + x.rank() : dim);
  if (at < 0 || at >= x.rank() || x.shape()[at] % 2 != 0) {
    c.fail(core::invalid("glu: the size of dimension " + std::to_string(dim) + " must be even"));
    return {};
  }
  const std::int64_t half = x.shape()[at] / 2;
  const auto part = [&](std::int64_t start) {
    return c.run(slice, {x},
                 {Attribute::of(dim), Attribute::of(start), Attribute::of(half),
                  Attribute::of(std::int64_t{1})});
  };
  return {part(0), part(half)};
}
void glu(Call& c) {
  const auto [a, b] = halves(c, c.var("self"), c.integer("dim"));
  c.give(a * ops::unary("sigmoid", b));
}
void glu_backward(Call& c) {
  static const ops::OpRef cat("cat");
  const Var g = c.var("grad_output");
  const auto [a, b] = halves(c, c.var("self"), c.integer("dim"));
  const Var gate = ops::unary("sigmoid", b);
  const Var parts[] = {g * gate, g * a * gate * (Var(1) - gate)};
  const std::uint32_t counts[] = {2};
  if (!parts[1].absent()) {
    c.give(c.run_all(cat, parts, {Attribute::of(c.integer("dim"))}, counts)[0]);
  }
}

// ---- Complex numbers

// Fails the call if a complex factor meets real tensors.
bool takes_complex(Call& c, std::string_view factor, DType dtype) {
  if (core::is_complex(dtype)) return true;
  c.fail(core::invalid("For non-complex input tensors, argument " + std::string(factor) +
                       " must not be a complex number."));
  return false;
}
// Sums whose ops have a real factor only.
void add_scaled(Call& c) {
  if (c.is_real("alpha")) return c.run_row();
  const bool reversed = c.name() == "rsub";
  const auto [x, y] =
      promoted(c, c.var(reversed ? "other" : "self"), c.var(reversed ? "self" : "other"));
  if (x.absent() || !takes_complex(c, "alpha", x.dtype())) return;
  const Var scaled = y * c.var("alpha");
  c.give(c.name().starts_with("add") ? x + scaled : x - scaled);
}
void add_product_of(Call& c, std::string_view op) {
  if (c.is_real("value")) return c.run_row();
  const Var self = c.var("self"), product = ops::binary(op, c.var("tensor1"), c.var("tensor2"));
  if (self.absent() || product.absent()) return;
  if (!takes_complex(c, "value", core::promote(self.dtype(), product.dtype()))) return;
  c.give(self + product * c.var("value"));
}
void addcmul(Call& c) { add_product_of(c, "mul"); }
void addcdiv(Call& c) { add_product_of(c, "div"); }
void sinc(Call& c) {
  const Var x = c.var("self");
  if (x.absent() || !core::is_complex(x.dtype())) return c.run_row();
  const Var angle = x * M_PI;
  c.give(ops::where(equal_to(x, 0), 1, ops::unary("sin", angle) / angle));
}

// A bound of a bool is a bool.
void clamp_side(Call& c) {
  const bool low = c.name().starts_with("clamp_min");
  const Var x = c.var("self"), bound = c.var(low ? "min" : "max");
  if (x.absent() || x.dtype() != DType::kBool || !bound.is_tensor() ||
      bound.dtype() != DType::kBool) {
    return c.run_row();
  }
  c.give(ops::binary(low ? "logical_or" : "logical_and", x, bound));
}

// ---- Gradients by results

// PyTorch passes the result itself; the ops take the conjugate of a complex result.
void by_result(Call& c, std::string_view op) {
  c.give(made(op, {c.var("grad_output"), ops::conj(c.var("output"))}));
}
void sigmoid_backward(Call& c) { by_result(c, "sigmoid_backward"); }
void tanh_backward(Call& c) { by_result(c, "tanh_backward"); }

// ---- Gradients by the catalog's vjps

void by_vjp(Call& c, std::string_view op, const core::Attributes& attributes) {
  const Var operands[] = {c.var("self")};
  const Var g[] = {c.var("grad_output")};
  if (operands[0].absent() || g[0].absent()) return;
  c.give(c.gradients(op, operands, attributes, g, 1)[0]);
}
void silu_backward(Call& c) { by_vjp(c, "silu", {}); }
void mish_backward(Call& c) { by_vjp(c, "mish", {}); }
void hardswish_backward(Call& c) { by_vjp(c, "hardswish", {}); }
void hardsigmoid_backward(Call& c) { by_vjp(c, "hardsigmoid", {}); }
void log_sigmoid_backward(Call& c) { by_vjp(c, "logsigmoid", {}); }
void softplus_backward(Call& c) {
  by_vjp(c, "softplus", {Attribute::of(c.real("beta")), Attribute::of(c.real("threshold"))});
}
void hardtanh_backward(Call& c) {
  by_vjp(c, "hardtanh", {Attribute::of(c.real("min_val")), Attribute::of(c.real("max_val"))});
}
void logit_backward(Call& c) {
  by_vjp(c, "logit", {c.absent("eps") ? Attribute::none() : Attribute::of(c.real("eps"))});
}

constexpr Row kPointwiseRows[] = {
    {"neg abs sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan "
     "sinh cosh tanh asinh acosh atanh erf erfc erfinv sigmoid relu floor ceil trunc frac round "
     "sign sgn deg2rad rad2deg isnan isinf logical_not bitwise_not lgamma digamma i0 "
     "special_erfcx special_ndtri special_log_ndtr special_i0e special_i1 special_i1e signbit "
     "special_entr silu mish hardsigmoid hardswish special_bessel_j0 special_bessel_j1 "
     "special_bessel_y0 special_bessel_y1 special_modified_bessel_k0 "
     "special_modified_bessel_k1 angle",
     "(self)"},
    {"special_spherical_bessel_j0 special_airy_ai special_scaled_modified_bessel_k0 "
     "special_scaled_modified_bessel_k1",
     "(x)"},
    {"special_modified_bessel_i0", "i0(self)"},
    {"special_modified_bessel_i1", "special_i1(self)"},
    {"special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
     "special_chebyshev_polynomial_w special_shifted_chebyshev_polynomial_t "
     "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
     "special_shifted_chebyshev_polynomial_w special_hermite_polynomial_h "
     "special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p",
     "(x, n)"},
    {"conj_physical", "conj(self)"},
    {"isposinf isneginf", "(self)", is_infinity},
    {"hardshrink softshrink", "(self, lambd)", shrink},
    {"hardshrink_backward", "(grad_out, self, lambd)", shrink_backward},
    {"softshrink_backward", "(grad_output, self, lambd)", shrink_backward},
    {"round", "(self, decimals)", round_decimals},
    {"frexp", "(self)"},
    {"rrelu_with_noise", "(self, noise, lower, upper, training)", random_leaky},
    {"logit", "logit(self, eps)"},
    {"sinc", "sinc(self)", sinc},
    {"nan_to_num", "nan_to_num(self, nan, posinf, neginf)", by_parts},
    {"polygamma", "(self, n)"},
    {"gelu", "(self, approximate)"},
    {"leaky_relu", "(self, negative_slope)"},
    {"softplus", "(self, beta, threshold)"},
    {"hardtanh", "(self, min_val, max_val)"},
    {"add", "add(self, other, alpha?)", add_scaled},
    {"sub", "sub(self, other, alpha?)", add_scaled},
    {"rsub", "sub(other, self, alpha)", add_scaled},
    {"div", "div(self, other, rounding_mode?)"},
    {"mul floor_divide remainder fmod maximum minimum fmax fmin atan2 hypot copysign eq ne lt le "
     "gt "
     "ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift "
     "bitwise_right_shift xlogy special_xlog1py logaddexp logaddexp2 igamma igammac special_zeta "
     "nextafter gcd lcm",
     "(self, other)"},
    {"__lshift__ __ilshift__", "bitwise_left_shift(self, other)"},
    {"__rshift__ __irshift__", "bitwise_right_shift(self, other)"},
    {"heaviside", "(self, values)"},
    {"pow", "(self, exponent)"},
    {"where", "(condition, self, other)"},
    {"masked_fill", "(self, mask, value)"},
    {"clamp", "(self, min, max)"},
    {"clamp_min", "clamp(self, min, -)", clamp_side},
    {"clamp_max", "clamp(self, -, max)", clamp_side},
    {"lerp", "(self, end, weight)"},
    {"addcmul", "addcmul(self, tensor1, tensor2, value)", addcmul},
    {"addcdiv", "addcdiv(self, tensor1, tensor2, value)", addcdiv},
    {"fill", "(self, value)"},
    {"zero", "fill(self, 0)"},
    {"complex", "(real, imag)"},
    {"polar", "(abs, angle)"},
    {"sigmoid_backward", "(grad_output, output)", sigmoid_backward},
    {"tanh_backward", "(grad_output, output)", tanh_backward},
    {"gelu_backward", "(grad_output, self, approximate)"},
    {"elu", "(self, alpha, scale, input_scale)", elu},
    {"elu_backward", "(grad_output, alpha, scale, input_scale, is_result, self_or_result)",
     elu_backward},
    {"leaky_relu_backward", "(grad_output, self, negative_slope | self_is_result)",
     leaky_relu_backward},
    {"threshold", "(self, threshold, value)", threshold},
    {"threshold_backward", "(grad_output, self, threshold)", threshold_backward},
    {"log_sigmoid_forward", "(self)", log_sigmoid_forward},
    {"log_sigmoid_backward", "(grad_output, self | buffer)", log_sigmoid_backward},
    {"_prelu_kernel", "(self, weight)", prelu},
    {"_prelu_kernel_backward", "(grad_output, self, weight)", prelu_backward},
    {"glu", "(self, dim)", glu},
    {"glu_backward", "(grad_output, self, dim)", glu_backward},
    {"silu_backward", "(grad_output, self)", silu_backward},
    {"mish_backward", "(grad_output, self)", mish_backward},
    {"hardswish_backward", "(grad_output, self)", hardswish_backward},
    {"hardsigmoid_backward", "(grad_output, self)", hardsigmoid_backward},
    {"softplus_backward", "(grad_output, self, beta, threshold)", softplus_backward},
    {"hardtanh_backward", "(grad_output, self, min_val, max_val)", hardtanh_backward},
    {"logit_backward", "(grad_output, self, eps)", logit_backward},
};

}  // namespace

std::span<const Row> pointwise_rows() { return kPointwiseRows; }

}  // namespace teletensor::torch
