// Elementwise ops with two operands, each a tensor or a Python number: arithmetic, comparison,
// logic, bits. The functors are in scalar/binary.h, and the list of kernels is in
// backends/cpu/binary*.cc.

#include <cmath>
#include <complex>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/pointwise/elementwise.h"

namespace teletensor::ops {
namespace {

using core::DType;
using core::Status;

// ---------------------------------------------------------------- inference

Status infer_add(InferContext& c) {
  const DType dtype = result_type(c);
  const double alpha = c.attributes.real(0);
  if (!core::is_inexact(dtype) && alpha != std::trunc(alpha)) {
    return c.fail("for integers alpha must be an integer, it is " + std::to_string(alpha));
  }
  return infer_elementwise(c, dtype);
}

Status infer_sub(InferContext& c) {
  for (const OperandInfo& operand : c.operands) {
    if ((operand.tensor() && operand.layout->dtype == DType::kBool) ||
        (operand.number && operand.number->kind == core::Number::Kind::kBool)) {
      return c.not_defined_for(DType::kBool, "; use logical_xor, or logical_not to invert a mask");
    }
  }
  return infer_add(c);
}

enum class Rounding { kNone, kFloor, kTrunc, kUnknown };
Rounding rounding_of(const core::Attributes& attributes) {
  if (!attributes.has(0)) return Rounding::kNone;
  if (attributes.text(0) == "floor") return Rounding::kFloor;
  return attributes.text(0) == "trunc" ? Rounding::kTrunc : Rounding::kUnknown;
}

Status infer_div(InferContext& c) {
  switch (rounding_of(c.attributes)) {
    case Rounding::kNone:
      return infer_inexact(c);
    case Rounding::kUnknown:
      return c.fail("rounding_mode must be None, 'trunc' or 'floor'");
    default:
      return infer_no_bool(c);
  }
}

Status infer_pow(InferContext& c) {
  const core::Number* exponent = c.operands[1].number;
  const DType dtype = result_type(c);
  if (exponent && exponent->negative() && !core::is_inexact(dtype)) {
    return c.fail("integers to negative integer powers are not defined");
  }
  if (dtype == DType::kBool && exponent == nullptr) return c.not_defined_for(dtype);
  TT_RETURN_IF_ERROR(infer_number(c));
  // RULE: a number to the power of a tensor is row-major, whatever the tensor's strides are.
  if (c.operands[0].number) c.results[0].geometry = core::Geometry(c.results[0].geometry.shape);
  return {};
}

Status infer_bits(InferContext& c) {
  const DType dtype = result_type(c);
  if (core::is_inexact(dtype)) {
    return c.unimplemented("is defined for integers and bool, not for " +
                           std::string(core::name_of(dtype)));
  }
  return infer_elementwise(c, dtype);
}

Status infer_shift(InferContext& c) {
  if (result_type(c) == DType::kBool) return c.not_defined_for(DType::kBool);
  return infer_bits(c);
}

// ---------------------------------------------------------------- derivatives

Var zeros_like(VjpContext& c, std::size_t i) { return zeros(c.builder(), c.operand_layout(i)); }

void add_vjp(VjpContext& c) {
  const Var g = c.gradient();
  const double alpha = c.attributes().real(0);
  if (c.needs(0)) c.give(0, g);
  if (c.needs(1)) c.give(1, alpha == 1 ? g : g * Var(alpha));
}

void sub_vjp(VjpContext& c) {
  const Var g = c.gradient();
  const double alpha = c.attributes().real(0);
  if (c.needs(0)) c.give(0, g);
  if (c.needs(1)) c.give(1, alpha == 1 ? -g : g * Var(-alpha));
}

void mul_vjp(VjpContext& c) {
  const Var g = c.gradient();
  if (c.needs(0)) c.give(0, g * conj(c.operand(1)));
  if (c.needs(1)) c.give(1, g * conj(c.operand(0)));
}

void div_vjp(VjpContext& c) {
  if (rounding_of(c.attributes()) != Rounding::kNone) {
    for (std::size_t i = 0; i < 2; ++i) {
      if (c.needs(i)) c.give(i, zeros_like(c, i));
    }
    return;
  }
  const Var g = c.gradient(), b = c.operand(1);
  if (c.needs(0)) c.give(0, g / conj(b));
  if (c.needs(1)) c.give(1, -(g * conj((c.operand(0) / b) / b)));
}

Var rounded_quotient(VjpContext& c, const char* mode) {
  static const OpRef op("div");
  return apply(op, {c.operand(0), c.operand(1)}, {core::Attribute::of(mode)});
}

void remainder_vjp(VjpContext& c) {
  const Var g = c.gradient();
  if (c.needs(0)) c.give(0, g);
  if (c.needs(1)) c.give(1, -(g * rounded_quotient(c, "floor")));
}

void fmod_vjp(VjpContext& c) {
  const Var g = c.gradient();
  if (c.needs(0)) c.give(0, g);
  if (c.needs(1)) c.give(1, -(g * rounded_quotient(c, "trunc")));
}

bool is_complex(const Var& x) {
  return x.is_tensor() ? core::is_complex(x.dtype()) : x.number().is_complex();
}

// log(x) of a number; complex if the power is complex.
Var log_of(const core::Number& x, bool complex) {
  if (!complex) return Var(std::log(x.as_double()));
  const std::complex<double> log = std::log(std::complex<double>(x.as_double(), x.imaginary));
  return core::Number::of_complex(log.real(), log.imag());
}

// With an exponent of 0 the derivative by the base is 0, even if the base is 0.
void pow_vjp(VjpContext& c) {
  const Var g = c.gradient(), a = c.operand(0), b = c.operand(1);
  if (c.needs(0)) {
    if (b.is_number() && b.number().is_complex()) {
      const core::Number& e = b.number();
      const Var less(core::Number::of_complex(e.real - 1, e.imaginary));
      c.give(0, g * conj(binary("pow", a, less) * b));
    } else if (b.is_number()) {
      const double exponent = b.number().as_double();
      c.give(0, exponent == 0   ? zeros_like(c, 0)
                : exponent == 1 ? g
                : exponent == 2 ? g * conj(a * Var(2.0))
                                : g * conj(binary("pow", a, Var(exponent - 1)) * b));
    } else {
      const Var slope = g * conj(b * binary("pow", a, b - Var(1.0)));
      c.give(0, where(binary("eq", b, Var(0.0)), Var(0.0), slope));
    }
  }
  if (c.needs(1)) {
    const Var slope = c.result();
    const auto not_negative = [&] { return binary("ge", real(b), Var(0.0)); };
    if (a.is_number()) {
      const bool zero = a.number().as_double() == 0 && a.number().imaginary == 0;
      const Var by_log = g * conj(slope * log_of(a.number(), is_complex(slope)));
      c.give(1, zero ? where(not_negative(), Var(0.0), by_log) : by_log);
    } else {
      Var at_zero = binary("eq", a, Var(0.0));
      if (b.is_tensor()) at_zero = binary("logical_and", at_zero, not_negative());
      const Var base = is_complex(slope) ? cast(a, slope.dtype()) : a;
      c.give(1, where(at_zero, Var(0.0), g * conj(slope * unary("log", base))));
    }
  }
}

// Equal operands share the gradient.
void extremum_vjp(VjpContext& c, std::string_view loses) {
  const Var a = c.operand(0), b = c.operand(1), g = c.gradient();
  const Var shared = where(binary("eq", a, b), g * Var(0.5), g);
  if (c.needs(0)) c.give(0, where(binary(loses, a, b), Var(0.0), shared));
  if (c.needs(1)) c.give(1, where(binary(loses, b, a), Var(0.0), shared));
}

// NaN never wins, and equal operands share the gradient.
void extremum_of_numbers_vjp(VjpContext& c, std::string_view wins) {
  const Var a = c.operand(0), b = c.operand(1), g = c.gradient();
  Var first = binary(wins, a, b);
  if (b.is_tensor()) first = binary("logical_or", first, unary("isnan", b));
  const Var tie = binary("eq", a, b), half = g * Var(0.5);
  if (c.needs(0)) c.give(0, where(tie, half, where(first, g, Var(0.0))));
  if (c.needs(1)) c.give(1, where(tie, half, where(first, Var(0.0), g)));
}

void atan2_vjp(VjpContext& c) {
  const Var a = c.operand(0), b = c.operand(1), g = c.gradient();
  const Var norm = a * a + b * b;
  const Var scale = where(binary("eq", norm, Var(0.0)), Var(0.0), g / norm);
  if (c.needs(0)) c.give(0, scale * b);
  if (c.needs(1)) c.give(1, -(scale * a));
}

void hypot_vjp(VjpContext& c) {
  const Var g = c.gradient() / c.result();
  if (c.needs(0)) c.give(0, g * c.operand(0));
  if (c.needs(1)) c.give(1, g * c.operand(1));
}

void copysign_vjp(VjpContext& c) {
  if (c.needs(0)) {
    const Var a = c.operand(0);
    c.give(0, where(binary("eq", a, Var(0.0)), Var(0.0), c.gradient() * (c.result() / a)));
  }
  if (c.needs(1)) c.give(1, zeros_like(c, 1));
}

const std::vector<Save> kOther = {{0, bit(1)}, {1, bit(0)}};
const std::vector<Save> kDivision = {{0, bit(1)}, {1}};

OpDef floor_divide() {
  OpDef def = refusing(plain("floor_divide(Operand x, Operand other) -> Tensor",
                             "x / other rounded down. A backward through it raises an error; "
                             "through div with rounding_mode 'floor' it gives zeros. Integer "
                             "division by zero is an error.",
                             infer_no_bool));
  def.revision = 2;
  return def;
}

std::vector<OpDef> arithmetic() {
  return {
      row("add(Operand x, Operand other, float alpha=1.0) -> Tensor", "x + alpha * other.",
          infer_add, add_vjp),
      row("sub(Operand x, Operand other, float alpha=1.0) -> Tensor", "x - alpha * other.",
          infer_sub, sub_vjp),
      row("mul(Operand x, Operand other) -> Tensor", "x * other.", infer_number, mul_vjp, kOther),
      row("div(Operand x, Operand other, str? rounding_mode=None) -> Tensor",
          "x / other, a float; with rounding_mode 'floor' or 'trunc' rounded, in the operands' "
          "dtype. Integer division by zero is an error.",
          infer_div, div_vjp, kDivision),
      floor_divide(),
      row("remainder(Operand x, Operand other) -> Tensor",
          "x - floor(x / other) * other, with the sign of other (Python's %). An integer zero as "
          "other is an error.",
          infer_no_bool, remainder_vjp, {{0, bit(1)}, {1, bit(1)}}),
      row("fmod(Operand x, Operand other) -> Tensor",
          "x - trunc(x / other) * other, with the sign of x (C's %). An integer zero as other is "
          "an error.",
          infer_no_bool, fmod_vjp, {{0, bit(1)}, {1, bit(1)}}),
      row("pow(Operand x, Operand exponent) -> Tensor", "x to the power exponent.", infer_pow,
          pow_vjp, {{0}, {1}, {kResult, bit(1)}}),
      row(
          "maximum(Operand x, Operand other) -> Tensor", "The larger one; NaN where one is NaN.",
          infer_same, [](VjpContext& c) { extremum_vjp(c, "lt"); }, kBoth),
      row(
          "minimum(Operand x, Operand other) -> Tensor", "The smaller one; NaN where one is NaN.",
          infer_same, [](VjpContext& c) { extremum_vjp(c, "gt"); }, kBoth),
      row(
          "fmax(Operand x, Operand other) -> Tensor",
          "The larger one; the other one where one is NaN.", infer_same,
          [](VjpContext& c) { extremum_of_numbers_vjp(c, "ge"); }, kBoth),
      row(
          "fmin(Operand x, Operand other) -> Tensor",
          "The smaller one; the other one where one is NaN.", infer_same,
          [](VjpContext& c) { extremum_of_numbers_vjp(c, "le"); }, kBoth),
      row("atan2(Operand x, Operand other) -> Tensor",
          "The angle in radians of the point (other, x).", infer_real, atan2_vjp, kBoth),
      row("hypot(Operand x, Operand other) -> Tensor", "sqrt(x * x + other * other).",
          infer_floating, hypot_vjp, {{0, bit(0)}, {1, bit(1)}, {kResult}}),
      row("copysign(Operand x, Operand other) -> Tensor",
          "The magnitude of x with the sign of other.", infer_real, copysign_vjp,
          {{0, bit(0)}, {kResult, bit(0)}}),
  };
}

std::vector<OpDef> tests_and_bits() {
  constexpr std::string_view kTest = "its result is a bool";
  constexpr std::string_view kBits = "defined for integers";
  return {
      plain("eq(Operand x, Operand other) -> Tensor", "x == other.", infer_test, kTest),
      plain("ne(Operand x, Operand other) -> Tensor", "x != other.", infer_test, kTest),
      plain("lt(Operand x, Operand other) -> Tensor", "x < other.", infer_ordered_test, kTest),
      plain("le(Operand x, Operand other) -> Tensor", "x <= other.", infer_ordered_test, kTest),
      plain("gt(Operand x, Operand other) -> Tensor", "x > other.", infer_ordered_test, kTest),
      plain("ge(Operand x, Operand other) -> Tensor", "x >= other.", infer_ordered_test, kTest),
      plain("logical_and(Operand x, Operand other) -> Tensor", "x != 0 and other != 0.", infer_test,
            kTest),
      plain("logical_or(Operand x, Operand other) -> Tensor", "x != 0 or other != 0.", infer_test,
            kTest),
      plain("logical_xor(Operand x, Operand other) -> Tensor", "(x != 0) != (other != 0).",
            infer_test, kTest),
      plain("bitwise_and(Operand x, Operand other) -> Tensor", "The bits that both have.",
            infer_bits, kBits),
      plain("bitwise_or(Operand x, Operand other) -> Tensor", "The bits that one of them has.",
            infer_bits, kBits),
      plain("bitwise_xor(Operand x, Operand other) -> Tensor", "The bits that exactly one has.",
            infer_bits, kBits),
      plain("bitwise_left_shift(Operand x, Operand other) -> Tensor",
            "x shifted left by other bits; 0 for a negative count or one beyond the width.",
            infer_shift, kBits),
      plain("bitwise_right_shift(Operand x, Operand other) -> Tensor",
            "x shifted right by other bits, keeping the sign; all sign for a negative count or one "
            "beyond the width.",
            infer_shift, kBits),
  };
}

}  // namespace

std::vector<OpDef> binary_ops() {
  std::vector<OpDef> all = arithmetic();
  for (OpDef& op : tests_and_bits()) all.push_back(std::move(op));
  return all;
}

}  // namespace teletensor::ops
