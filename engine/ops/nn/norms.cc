// layer_norm and batch_norm: elements minus their mean, divided by their standard deviation.
// Kernels: backends/cpu/norms.cc.
#include <algorithm>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

// The dtype of the means and standard deviations of elements of `dtype`.
DType statistics_type(DType dtype) { return core::size_of(dtype) < 4 ? DType::kF32 : dtype; }

// ---------------------------------------------------------------- layer_norm

// Checks that normalized_shape (attribute 0) equals the last dimensions of `x` and the shape of the
// operands from `first` to `last`, as far as they are present.
Status check_normalized(InferContext& c, std::size_t x, std::size_t first, std::size_t last) {
  if (!core::is_floating(c.dtype(x))) return c.floating_expected(c.dtype(x));
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
    if (!core::is_floating(c.dtype(i))) return c.floating_expected(c.dtype(i));
    if (!std::equal(normalized.begin(), normalized.end(), c.shape(i).begin(), c.shape(i).end())) {
      return refuse(i == first ? "a weight" : "a bias", c.shape(i));
    }
  }
  return {};
}

// The shape of the statistics of each row: the outer dimensions, then ones.
Dims layer_statistics(const Dims& x, std::size_t normalized) {
  Dims shape = x;
  for (int d = x.size() - static_cast<int>(normalized); d < x.size(); ++d) shape[d] = 1;
  return shape;
}

Status layer_norm_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_normalized(c, 0, 1, 2));
  c.add_result(c.dtype(0), c.shape(0));
  const Dims rows = layer_statistics(c.shape(0), c.attributes.ints(0).size());
  for (int i = 0; i < 2; ++i) c.add_result(statistics_type(c.dtype(0)), rows);
  return {};
}

// Checks a gradient of x's shape, and floating statistics of the given shape.
Status check_saved(InferContext& c, const Dims& statistics) {
  if (c.shape(0) != c.shape(1)) {
    return c.fail("shapes differ: " + core::to_string(c.shape(0)) + " and " +
                  core::to_string(c.shape(1)));
  }
  if (!core::is_floating(c.dtype(0))) return c.floating_expected(c.dtype(0));
  for (std::size_t i = 3; i < 5; ++i) {
    if (c.shape(i) != statistics || c.dtype(i) != statistics_type(c.dtype(1))) {
      return c.fail("statistics of shape " + core::to_string(c.shape(i)) + ", expected " +
                    core::to_string(statistics));
    }
  }
  return {};
}

Status layer_norm_backward_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_normalized(c, 1, 2, 2));
  TT_RETURN_IF_ERROR(check_saved(c, layer_statistics(c.shape(1), c.attributes.ints(0).size())));
  const Dims row(c.attributes.ints(0));
  const DType dtype = c.operands[2].absent() ? c.dtype(1) : c.dtype(2);
  c.add_result(c.dtype(1), c.shape(1));
  c.add_result(dtype, row);
  c.add_result(dtype, row);
  return {};
}

// ---------------------------------------------------------------- batch_norm

// Checks a floating x [N, C, ...] and the operands `first` to `last`, which are floating and [C] if
// present.
Status check_channels(InferContext& c, std::size_t x, std::size_t first, std::size_t last) {
  if (!core::is_floating(c.dtype(x))) return c.floating_expected(c.dtype(x));
  if (c.rank(x) < 2) {
    return c.fail("needs at least 2 dimensions [N, C, ...], got input of shape " +
                  core::to_string(c.shape(x)));
  }
  const Dims channels{c.shape(x)[1]};
  for (std::size_t i = first; i <= last; ++i) {
    if (c.operands[i].absent()) continue;
    if (!core::is_floating(c.dtype(i))) return c.floating_expected(c.dtype(i));
    if (c.shape(i) != channels) {
      return c.fail("weight and bias must have shape " + core::to_string(channels) +
                    " for input of shape " + core::to_string(c.shape(x)) + ", got " +
                    core::to_string(c.shape(i)));
    }
  }
  return {};
}

Status batch_norm_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_channels(c, 0, 1, 2));
  c.add_result(c.dtype(0), c.shape(0));
  for (int i = 0; i < 3; ++i) {
    c.add_result(statistics_type(c.dtype(0)), Dims{c.shape(0)[1]});
  }
  return {};
}

Status batch_norm_backward_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_channels(c, 1, 2, 2));
  const Dims channels{c.shape(1)[1]};
  TT_RETURN_IF_ERROR(check_saved(c, channels));
  const DType dtype = c.operands[2].absent() ? c.dtype(1) : c.dtype(2);
  c.add_result(c.dtype(1), c.shape(1));
  c.add_result(dtype, channels);
  c.add_result(dtype, channels);
  return {};
}

// ---------------------------------------------------------------- derivatives

// Results 1 and 2 are the mean and 1 / sqrt(variance + eps).
template <bool kLayer>
void norm_vjp(VjpContext& c) {
  static const OpRef op(kLayer ? "layer_norm_backward" : "batch_norm_backward");
  const Var arguments[] = {c.gradient(), c.operand(0), c.operand(1), c.result(1), c.result(2)};
  const auto& a = c.attributes();
  const Vars given = apply_all(
      op, arguments, kLayer ? core::Attributes{a.at(0), a.at(1)} : core::Attributes{a.at(0)});
  if (given.empty()) return;
  for (int i = 0; i < 3; ++i) {
    if (i < static_cast<int>(c.operands()) && c.needs(i)) c.give(i, given[i]);
  }
}

// The derivative of (dx, dweight, dbias) with the cotangents (hx, hw, hb). With P(v) = v - mean(v)
// - xhat mean(v xhat), dx = r P(gw) where gw = g * weight and r = 1 / sqrt(var + eps). The
// statistics are recomputed from x, so this derivative is itself differentiable.
template <bool kLayer>
void norm_backward_vjp(VjpContext& c) {
  static const OpRef mean("mean"), var("var"), rsqrt("rsqrt");
  const Var g = c.operand(0), x = c.operand(1);
  const int rank = c.operand_layout(1).geometry.rank();
  // inner: the dimensions over which the statistics are computed. outer: the other dimensions.
  Dims inner, outer, spread(rank, 1);
  for (int i = 0; i < rank; ++i) {
    const bool own = kLayer ? i >= rank - static_cast<int>(c.attributes().ints(0).size()) : i != 1;
    (own ? inner : outer).push_back(i);
    if (own == kLayer) spread[i] = c.operand_layout(1).geometry.shape[i];
  }
  const Dims& folded = kLayer ? outer : inner;
  const auto average = [&](const Var& v) {
    return apply(mean, {v}, {Attribute::of(inner), Attribute::of(true)});
  };
  const auto wide = [&](const Var& v) { return v.is_tensor() ? reshape(v, spread) : v; };
  const auto over_rows = [&](const Var& v) { return folded.empty() ? v : sum(v, folded, false); };
  const Var weight = wide(c.operand(2));
  const bool weighted = weight.is_tensor();
  const Var r = apply(
      rsqrt, {apply(var, {x}, {Attribute::of(inner), Attribute::of(0.0), Attribute::of(true)}) +
              Var(c.attributes().real(kLayer ? 1 : 0))});
  const Var xhat = (x - average(x)) * r;
  const auto project = [&](const Var& v) { return v - average(v) - xhat * average(v * xhat); };
  const Var hx = c.gradient(0), hw = wide(c.gradient(1)), hb = wide(c.gradient(2));
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

std::vector<OpDef> norm_ops() {
  const std::vector<Save> forward = {
      {.slot = 0}, {.slot = 1, .when = bit(0)}, {.slot = kResult + 1}, {.slot = kResult + 2}};
  const std::vector<Save> backward = {{.slot = 0}, {.slot = 1}, {.slot = 2}};
  return {
      {.signature = "layer_norm(Tensor x, Tensor? weight=None, Tensor? bias=None, "
                    "int[] normalized_shape, float eps=1e-05) -> (Tensor y, Tensor mean, "
                    "Tensor rstd)",
       .doc =
           "(x - mean) / sqrt(variance + eps) * weight + bias, mean and (biased) variance over the "
           "last dims, whose sizes are normalized_shape; also the mean and 1 / sqrt(variance + "
           "eps).",
       .infer = layer_norm_infer,
       .vjp = norm_vjp<true>,
       .saves = forward,
       .revision = 2},
      {.signature = "layer_norm_backward(Tensor gradient, Tensor x, Tensor? weight, Tensor mean, "
                    "Tensor rstd, int[] normalized_shape, float eps) -> (Tensor dx, Tensor "
                    "dweight, Tensor dbias)",
       .doc = "The derivatives of layer_norm by x, weight and bias.",
       .infer = layer_norm_backward_infer,
       .vjp = norm_backward_vjp<true>,
       .saves = backward,
       .internal = true,
       .revision = 2},
      {.signature = "batch_norm(Tensor x, Tensor? weight=None, Tensor? bias=None, float eps=1e-05) "
                    "-> (Tensor y, Tensor mean, Tensor rstd, Tensor variance)",
       .doc = "(x - mean) / sqrt(variance + eps) * weight + bias with one mean and (biased) "
              "variance for each channel of x [N, C, ...]; also the mean, 1 / sqrt(variance + eps) "
              "and the variance.",
       .infer = batch_norm_infer,
       .vjp = norm_vjp<false>,
       .saves = forward},
      {.signature = "batch_norm_backward(Tensor gradient, Tensor x, Tensor? weight, Tensor mean, "
                    "Tensor rstd, float eps) -> (Tensor dx, Tensor dweight, Tensor dbias)",
       .doc = "The derivatives of batch_norm by x, weight and bias.",
       .infer = batch_norm_backward_infer,
       .vjp = norm_backward_vjp<false>,
       .saves = backward,
       .internal = true},
  };
}

}  // namespace teletensor::ops
