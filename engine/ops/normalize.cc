// softmax, log_softmax, layer_norm. Kernels: backends/cpu/normalize.cc.
#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/reduce_dims.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

Status not_floating(const InferContext& c, DType dtype) {
  return c.fail("expected a floating point tensor, got " + std::string(core::name_of(dtype)));
}

// ---------------------------------------------------------------- softmax

Status softmax_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(core::normalize_dim(c.attributes.integer(0), c.rank(0), c.op).status());
  const DType dtype = c.attributes.has(1) ? c.attributes.dtype(1) : c.dtype(0);
  if (!core::is_floating(dtype)) return not_floating(c, dtype);
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
    if (!core::is_floating(c.dtype(i))) return not_floating(c, c.dtype(i));
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

// Of y * (g - sum(g * y)).
void softmax_backward_vjp(VjpContext& c) {
  const Var h = c.gradient(), y = c.operand(1);
  if (c.needs(0)) c.give(0, softmax_gradient<false>(h, y, c.attributes().at(0)));
  if (c.needs(1)) {
    const Var g = c.operand(0);
    c.give(1, h * (g - sum_along(c, g * y)) - g * sum_along(c, h * y));
  }
}

// Of g - exp(y) * sum(g).
void log_softmax_backward_vjp(VjpContext& c) {
  const Var h = c.gradient(), p = unary("exp", c.operand(1));
  if (c.needs(0)) c.give(0, h - sum_along(c, h * p));
  if (c.needs(1)) c.give(1, -(h * p * sum_along(c, c.operand(0))));
}

// ---------------------------------------------------------------- layer_norm

// normalized_shape (attribute 0) must be the last dims of `x` and the shape of the operands from
// `first` on, where present.
Status check_normalized(InferContext& c, std::size_t x, std::size_t first, std::size_t last) {
  if (!core::is_floating(c.dtype(x))) return not_floating(c, c.dtype(x));
  const auto normalized = c.attributes.ints(0);
  if (normalized.empty()) return c.fail("normalized_shape is empty");
  const Dims& shape = c.shape(x);
  const auto refuse = [&](const std::string& what, const Dims& got) {
    std::string wanted = "[";
    for (std::size_t i = 0; i < normalized.size(); ++i) {
      wanted += (i ? ", " : "") + std::to_string(normalized[i]);
    }
    return c.fail(what + " of shape " + core::to_string(got) + " does not match normalized_shape " +
                  wanted + "]");
  };
  if (normalized.size() > static_cast<std::size_t>(shape.size()) ||
      !std::equal(normalized.begin(), normalized.end(),
                  shape.end() - static_cast<int>(normalized.size()))) {
    return refuse("an input", shape);
  }
  for (std::size_t i = first; i <= last; ++i) {
    if (c.operands[i].absent()) continue;
    if (!core::is_floating(c.dtype(i))) return not_floating(c, c.dtype(i));
    if (!std::equal(normalized.begin(), normalized.end(), c.shape(i).begin(), c.shape(i).end())) {
      return refuse(i == first ? "a weight" : "a bias", c.shape(i));
    }
  }
  return {};
}

Status layer_norm_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_normalized(c, 0, 1, 2));
  c.add_result(c.dtype(0), c.shape(0));
  return {};
}

Status layer_norm_backward_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_normalized(c, 1, 2, 2));
  if (c.shape(0) != c.shape(1)) {
    return c.fail("shapes differ: " + core::to_string(c.shape(0)) + " and " +
                  core::to_string(c.shape(1)));
  }
  if (!core::is_floating(c.dtype(0))) return not_floating(c, c.dtype(0));
  const Dims row(c.attributes.ints(0));
  const DType dtype = c.operands[2].absent() ? c.dtype(1) : c.dtype(2);
  c.add_result(c.dtype(1), c.shape(1));
  c.add_result(dtype, row);
  c.add_result(dtype, row);
  return {};
}

void layer_norm_vjp(VjpContext& c) {
  static const OpRef op("layer_norm_backward");
  const Attribute &shape = c.attributes().at(0), &eps = c.attributes().at(1);
  const Var arguments[] = {c.gradient(), c.operand(0), c.operand(1)};
  const Vars given = apply_all(op, arguments, {shape, eps});
  if (given.empty()) return;
  for (int i = 0; i < 3; ++i) {
    if (i < static_cast<int>(c.operands()) && c.needs(i)) c.give(i, given[i]);
  }
}

// Of (dx, dweight, dbias) with cotangents (hx, hw, hb). With P(v) = v - mean(v) - xhat mean(v
// xhat), dx = r P(gw) where gw = g * weight and r = 1 / sqrt(var + eps).
void layer_norm_backward_vjp(VjpContext& c) {
  static const OpRef mean("mean"), var("var"), rsqrt("rsqrt");
  const Var g = c.operand(0), x = c.operand(1), weight = c.operand(2);
  const bool weighted = weight.is_tensor();
  const int rows = x.rank() - static_cast<int>(c.attributes().ints(0).size());
  Dims inner, outer;
  for (int i = 0; i < x.rank(); ++i) (i < rows ? outer : inner).push_back(i);
  const auto average = [&](const Var& v) {
    return apply(mean, {v}, {Attribute::of(inner), Attribute::of(true)});
  };
  const auto over_rows = [&](const Var& v) { return outer.empty() ? v : sum(v, outer, false); };
  const Var r = apply(
      rsqrt, {apply(var, {x}, {Attribute::of(inner), Attribute::of(0.0), Attribute::of(true)}) +
              Var(c.attributes().real(1))});
  const Var xhat = (x - average(x)) * r;
  const auto project = [&](const Var& v) { return v - average(v) - xhat * average(v * xhat); };
  const Var hx = c.gradient(0), hw = c.gradient(1), hb = c.gradient(2);
  const Var gw = weighted ? g * weight : g;
  const Var back = r * project(hx);
  if (c.needs(0)) c.give(0, (weighted ? back * weight : back) + xhat * hw + hb);
  if (weighted && c.needs(2)) c.give(2, over_rows(g * back));
  if (c.needs(1)) {
    const Var q = g * hw - r * (hx * average(gw * xhat) + gw * average(hx * xhat));
    c.give(1, r * project(q) - r * r * xhat * average(hx * project(gw)));
  }
}

}  // namespace

std::vector<OpDef> normalize_ops() {
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
      {.signature = "layer_norm(Tensor x, Tensor? weight=None, Tensor? bias=None, "
                    "int[] normalized_shape, float eps=1e-05) -> Tensor",
       .doc =
           "(x - mean) / sqrt(variance + eps) * weight + bias, mean and (biased) variance over the "
           "last dims, whose sizes are normalized_shape.",
       .infer = layer_norm_infer,
       .vjp = layer_norm_vjp,
       .saves = {{.slot = 0}, {.slot = 1, .when = bit(0)}}},
      {.signature =
           "layer_norm_backward(Tensor gradient, Tensor x, Tensor? weight, "
           "int[] normalized_shape, float eps) -> (Tensor dx, Tensor dweight, Tensor dbias)",
       .doc = "The derivatives of layer_norm by x, weight and bias.",
       .infer = layer_norm_backward_infer,
       .vjp = layer_norm_backward_vjp,
       .saves = {{.slot = 0}, {.slot = 1}, {.slot = 2}},
       .internal = true},
  };
}

}  // namespace teletensor::ops
