// Elementwise ops with three operands: where, clamp, lerp, addcmul, addcdiv, masked_fill.

#include <cmath>
#include <cstdint>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/pointwise/elementwise.h"

namespace teletensor::ops {
namespace {

using core::DType;
using core::Status;

Status refuse_condition(InferContext& c, std::size_t i) {
  return c.fail("the condition must be a bool tensor, it is " +
                std::string(core::name_of(c.dtype(i))));
}

Status infer_where(InferContext& c) {
  if (c.dtype(0) != DType::kBool) return refuse_condition(c, 0);
  const DType dtype = result_type(c.operands.subspan(1), c.default_dtype);
  for (const std::size_t i : {1, 2}) TT_RETURN_IF_ERROR(check_number(c, i, dtype));
  return infer_elementwise(c, dtype, dtype, /*condition=*/true);
}

void where_vjp(VjpContext& c) {
  const Var condition = c.operand(0), g = c.gradient();
  if (c.needs(1)) c.give(1, where(condition, g, Var(0.0)));
  if (c.needs(2)) c.give(2, where(condition, Var(0.0), g));
}

Status infer_masked_fill(InferContext& c) {
  if (c.dtype(1) != DType::kBool) return refuse_condition(c, 1);
  const OperandInfo& value = c.operands[2];
  TT_RETURN_IF_ERROR(check_number(c, 2, c.dtype(0)));
  if (value.tensor() && value.layout->geometry.rank() > 0) {
    return c.fail("value must be a number or a 0-d tensor, it has shape " +
                  core::to_string(value.layout->geometry.shape));
  }
  TT_RETURN_IF_ERROR(infer_elementwise(c, c.dtype(0)));
  // RULE: row-major, in contrast to other elementwise results.
  c.results[0].geometry = core::Geometry(c.results[0].geometry.shape);
  return {};
}

void masked_fill_vjp(VjpContext& c) {
  const Var mask = c.operand(1), g = c.gradient();
  if (c.needs(0)) c.give(0, where(mask, Var(0.0), g));
  if (c.needs(2)) c.give(2, where(mask, g, Var(0.0)));
}

Status infer_clamp(InferContext& c) {
  if (c.operands[1].absent() && c.operands[2].absent()) {
    return c.fail("at least one of min and max must be given");
  }
  const DType dtype = result_type(c);
  const core::IntegerRange range = core::range_of(dtype);
  const auto outside = [&](const core::Number* limit, bool is_min) {
    if (limit == nullptr || !core::is_integral(dtype) || !limit->is_integer()) return false;
    if (!is_min) return limit->negative() && limit->integer < range.least;
    return !limit->negative() && static_cast<std::uint64_t>(limit->integer) > range.most;
  };
  const core::Number *min = c.operands[1].number, *max = c.operands[2].number;
  if (outside(min, true) || outside(max, false)) {
    return c.fail("the limit " + core::to_string(outside(min, true) ? *min : *max) +
                  " is outside of " + std::string(core::name_of(dtype)));
  }
  return infer_no_bool(c);
}

// RULE: if limits are numbers, x has no gradient at a limit; if they are tensors, x and the limit
// share it there.
void clamp_vjp(VjpContext& c) {
  const Var x = c.operand(0), low = c.operand(1), high = c.operand(2), g = c.gradient();
  const auto both = [](const Var& a, const Var& b) { return binary("logical_and", a, b); };
  const auto either = [](const Var& a, const Var& b) {
    return a.absent() ? b : b.absent() ? a : binary("logical_or", a, b);
  };
  if (!low.is_tensor() && !high.is_tensor()) {
    const Var above = low.absent() ? Var() : binary("gt", x, low);
    const Var below = high.absent() ? Var() : binary("lt", x, high);
    const Var inside = above.absent() ? below : below.absent() ? above : both(above, below);
    return c.give(0, where(inside, g, Var(0.0)));
  }
  const bool two = !low.absent() && !high.absent();
  const auto at = [&](const Var& limit) {
    if (limit.absent()) return Var();
    const Var equal = binary("eq", x, limit);
    return two ? both(equal, binary("lt", low, high)) : equal;
  };
  const Var half = g * Var(0.5), at_low = at(low), at_high = at(high);
  if (c.needs(0)) {
    const Var outside = either(low.absent() ? Var() : binary("lt", x, low),
                               high.absent() ? Var() : binary("gt", x, high));
    c.give(0, where(outside, Var(0.0), where(either(at_low, at_high), half, g)));
  }
  // Not "x < low": a single limit also gets the gradient for NaN, as an operand of maximum does.
  if (c.needs(1)) {
    const Var wins = two ? both(binary("lt", x, low), binary("le", low, high))
                         : unary("logical_not", binary("gt", x, low));
    c.give(1, where(at_low, half, where(wins, g, Var(0.0))));
  }
  if (c.needs(2)) {
    const Var wins = two ? either(binary("gt", x, high), binary("gt", low, high))
                         : unary("logical_not", binary("lt", x, high));
    c.give(2, where(at_high, half, where(wins, g, Var(0.0))));
  }
}

void lerp_vjp(VjpContext& c) {
  const Var weight = c.operand(2), g = c.gradient();
  if (c.needs(0)) {
    const bool real = weight.is_number() && !weight.number().is_complex();
    c.give(0, g * (real ? Var(1.0 - weight.number().as_double()) : Var(1.0) - conj(weight)));
  }
  if (c.needs(1)) c.give(1, g * conj(weight));
  if (c.needs(2)) c.give(2, g * conj(c.operand(1) - c.operand(0)));
}

Status infer_lerp(InferContext& c) {
  for (const OperandInfo& operand : c.operands) {
    if (operand.tensor() && operand.layout->dtype != c.dtype(0)) {
      return c.fail("all tensors must have one dtype, they have " +
                    std::string(core::name_of(c.dtype(0))) + " and " +
                    std::string(core::name_of(operand.layout->dtype)));
    }
  }
  if (!core::is_inexact(c.dtype(0))) {
    return c.unimplemented("is defined for floating dtypes, not for " +
                           std::string(core::name_of(c.dtype(0))));
  }
  return infer_elementwise(c, c.dtype(0));
}

Status infer_addcmul(InferContext& c) {
  const double value = c.attributes.real(0);
  if (!core::is_inexact(result_type(c)) && value != std::trunc(value)) {
    return c.fail("for integers value must be an integer, it is " + std::to_string(value));
  }
  return infer_number_no_bool(c);
}

Var scaled(const Var& x, double factor) { return factor == 1 ? x : x * Var(factor); }

void addcmul_vjp(VjpContext& c) {
  const Var g = c.gradient();
  const double value = c.attributes().real(0);
  if (c.needs(0)) c.give(0, g);
  if (c.needs(1)) c.give(1, scaled(g * conj(c.operand(2)), value));
  if (c.needs(2)) c.give(2, scaled(g * conj(c.operand(1)), value));
}

void addcdiv_vjp(VjpContext& c) {
  const Var g = c.gradient();
  const double value = c.attributes().real(0);
  if (c.needs(0)) c.give(0, g);
  if (c.needs(1)) c.give(1, scaled(g / conj(c.operand(2)), value));
  if (c.needs(2)) {
    const Var b = c.operand(2);
    c.give(2, scaled(g * conj(c.operand(1) / (b * b)), -value));
  }
}

}  // namespace

std::vector<OpDef> ternary_ops() {
  return {
      row("where(Tensor condition, Operand x, Operand other) -> Tensor",
          "x where the condition (a bool tensor) holds, else other.", infer_where, where_vjp,
          {{0}}),
      row("masked_fill(Tensor x, Tensor mask, Operand value) -> Tensor",
          "value (a number or a 0-d tensor) where mask holds, else x.", infer_masked_fill,
          masked_fill_vjp, {{1}}),
      row("clamp(Tensor x, Operand? min=None, Operand? max=None) -> Tensor",
          "x limited to [min, max]; max where min > max; NaN where one is NaN.", infer_clamp,
          clamp_vjp, {{0}, {1}, {2}}),
      row("lerp(Tensor x, Tensor end, Operand weight) -> Tensor", "x + weight * (end - x).",
          infer_lerp, lerp_vjp, {{0, bit(2)}, {1, bit(2)}, {2, bit(0) | bit(1)}}),
      row("addcmul(Tensor x, Tensor tensor1, Tensor tensor2, float value=1.0) -> Tensor",
          "x + value * tensor1 * tensor2.", infer_addcmul, addcmul_vjp, {{1, bit(2)}, {2, bit(1)}}),
      row("addcdiv(Tensor x, Tensor tensor1, Tensor tensor2, float value=1.0) -> Tensor",
          "x + value * tensor1 / tensor2.", infer_inexact_only, addcdiv_vjp,
          {{1, bit(2)}, {2, bit(1) | bit(2)}}),
  };
}

}  // namespace teletensor::ops
