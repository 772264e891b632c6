// softmax and log_softmax. Kernels: backends/cpu/softmax.cc.
#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/reduction/reduce_dims.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

// ---------------------------------------------------------------- softmax

Status softmax_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(core::normalize_dim(c.attributes.integer(0), c.rank(0), c.op).status());
  const DType dtype = c.attributes.has(1) ? c.attributes.dtype(1) : c.dtype(0);
  if (!core::is_floating(dtype)) return c.floating_expected(dtype);
  c.add_result(dtype, c.shape(0));
  return {};
}

Status softmax_backward_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(core::normalize_dim(c.attributes.integer(0), c.rank(1), c.op).status());
  if (c.shape(0) != c.shape(1)) {
    return c.fail("shapes differ: " + core::to_string(c.shape(0)) + " and " +
                  core::to_string(c.shape(1)));
  }
  for (int i = 0; i < 2; ++i) {
    if (!core::is_floating(c.dtype(i))) return c.floating_expected(c.dtype(i));
  }
  c.add_result(c.dtype(1), c.shape(1));
  return {};
}

// Both derivatives are linear in the gradient.
template <bool kLog>
Var softmax_gradient(const Var& gradient, const Var& output, const Attribute& dim) {
  static const OpRef op(kLog ? "log_softmax_backward" : "softmax_backward");
  return apply(op, {gradient, output}, {dim});
}

template <bool kLog>
void softmax_vjp(VjpContext& c) {
  c.give(0, softmax_gradient<kLog>(c.gradient(), c.result(), c.attributes().at(0)));
}

Var sum_along(VjpContext& c, const Var& x) {
  const std::int64_t dim = c.attributes().integer(0);
  if (x.rank() == 0) return x;
  return sum(x, Dims{dim}, true);
}

// The derivative of y * (g - sum(g * y)).
void softmax_backward_vjp(VjpContext& c) {
  const Var h = c.gradient(), y = c.operand(1);
  if (c.needs(0)) c.give(0, softmax_gradient<false>(h, y, c.attributes().at(0)));
  if (c.needs(1)) {
    const Var g = c.operand(0);
    c.give(1, h * (g - sum_along(c, g * y)) - g * sum_along(c, h * y));
  }
}

// The derivative of g - exp(y) * sum(g).
void log_softmax_backward_vjp(VjpContext& c) {
  const Var h = c.gradient(), p = unary("exp", c.operand(1));
  if (c.needs(0)) c.give(0, h - sum_along(c, h * p));
  if (c.needs(1)) c.give(1, -(h * p * sum_along(c, c.operand(0))));
}

}  // namespace

std::vector<OpDef> softmax_ops() {
  const std::vector<Save> both = {{.slot = 0, .when = bit(1)}, {.slot = 1}};
  return {
      {.signature = "softmax(Tensor x, int dim, dtype? dtype=None) -> Tensor",
       .doc = "exp(x) / sum(exp(x)) along dim, computed without overflow.",
       .infer = softmax_infer,
       .vjp = softmax_vjp<false>,
       .saves = {{.slot = kResult}}},
      {.signature = "log_softmax(Tensor x, int dim, dtype? dtype=None) -> Tensor",
       .doc = "x - log(sum(exp(x))) along dim, computed without overflow.",
       .infer = softmax_infer,
       .vjp = softmax_vjp<true>,
       .saves = {{.slot = kResult}}},
      {.signature = "softmax_backward(Tensor gradient, Tensor output, int dim) -> Tensor",
       .doc = "The derivative of softmax from its output y: y * (g - sum(g * y)).",
       .infer = softmax_backward_infer,
       .vjp = softmax_backward_vjp,
       .saves = both,
       .internal = true},
      {.signature = "log_softmax_backward(Tensor gradient, Tensor output, int dim) -> Tensor",
       .doc = "The derivative of log_softmax from its output y: g - exp(y) * sum(g).",
       .infer = softmax_backward_infer,
       .vjp = log_softmax_backward_vjp,
       .saves = both,
       .internal = true},
  };
}

}  // namespace teletensor::ops
