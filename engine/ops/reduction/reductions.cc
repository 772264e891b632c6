// Reductions of many elements to one. Kernels: backends/cpu/reductions*.cc.
#include <limits>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/reduction/recurrences.h"
#include "engine/ops/reduction/reduce_dims.h"

namespace teletensor::ops {
namespace {

using core::Attribute;
using core::Dims;
using core::DType;
using core::Status;

std::uint32_t all_dims(int rank) { return (1u << rank) - 1; }

// ---------------------------------------------------------------- inference

Status add_reduced(InferContext& c, DType dtype, std::size_t dims, std::size_t keepdim) {
  const auto mask = dims_mask(c.attributes, dims, c.rank(0), c.op);
  if (!mask.ok()) return mask.status();
  const bool keep = keepdim < c.attributes.size() && c.attributes.boolean(keepdim);
  c.add_result(dtype, reduced_shape(c.shape(0), *mask, keep));
  return {};
}

// Integers and bools are summed as int64.
Status sum_infer(InferContext& c) {
  if (c.attributes.has(2) && c.attributes.dtype(2) == DType::kBool && c.dtype(0) != DType::kBool) {
    return c.unimplemented("dtype bool for a tensor of " + std::string(core::name_of(c.dtype(0))) +
                           "; use any, or all for a product, or cast the tensor to bool");
  }
  const DType own = core::is_inexact(c.dtype(0)) ? c.dtype(0) : DType::kI64;
  return add_reduced(c, c.attributes.has(2) ? c.attributes.dtype(2) : own, 0, 1);
}

Status mean_infer(InferContext& c) {
  const DType dtype = c.attributes.has(2) ? c.attributes.dtype(2) : c.dtype(0);
  if (!core::is_inexact(dtype)) {
    return c.unimplemented(
        "could not infer output dtype: input dtype must be floating point, got " +
        std::string(core::name_of(dtype)));
  }
  return add_reduced(c, dtype, 0, 1);
}

Status inexact_only(const InferContext& c) {
  if (core::is_inexact(c.dtype(0))) return {};
  return c.unimplemented("expected a floating point or complex tensor, got " +
                         std::string(core::name_of(c.dtype(0))));
}

Status spread_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(inexact_only(c));
  return add_reduced(c, core::real_of(c.dtype(0)), 0, 2);
}

Status norm_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(inexact_only(c));
  const DType dtype = core::real_of(c.attributes.has(3) ? c.attributes.dtype(3) : c.dtype(0));
  if (!core::is_floating(dtype)) return c.fail("dtype must be floating point");
  const double p = c.attributes.real(0);
  if (p != p) return c.fail("p is NaN");
  const auto mask = dims_mask(c.attributes, 1, c.rank(0), c.op);
  if (!mask.ok()) return mask.status();
  if ((p < 0 || p == std::numeric_limits<double>::infinity()) &&
      reduced_count(c.shape(0), *mask) == 0) {
    return c.fail("this norm has no value over no elements, shape " + core::to_string(c.shape(0)));
  }
  return add_reduced(c, dtype, 1, 2);
}

Status logsumexp_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(c.not_complex());
  return add_reduced(c, core::is_floating(c.dtype(0)) ? c.dtype(0) : c.default_dtype, 0, 1);
}

Status truth_infer(InferContext& c) {
  return add_reduced(c, c.dtype(0) == DType::kU8 ? DType::kU8 : DType::kBool, 0, 1);
}

Status count_infer(InferContext& c) { return add_reduced(c, DType::kI64, 0, 1); }

// Refuses the extremum of no elements.
Status not_over_nothing(const InferContext& c, std::uint32_t mask) {
  if (reduced_count(c.shape(0), mask) > 0) return {};
  if (mask == all_dims(c.rank(0))) {
    const std::string text =
        std::string(c.op) + ": cannot reduce an empty tensor, shape " + core::to_string(c.shape(0));
    return c.op.starts_with("arg") ? Status(core::Code::kOutOfRange, text) : core::invalid(text);
  }
  return Status(core::Code::kOutOfRange,
                std::string(c.op) + ": expected the reduced dims to have non-zero size, shape " +
                    core::to_string(c.shape(0)));
}

Status whole_extremum_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(c.not_complex());
  TT_RETURN_IF_ERROR(not_over_nothing(c, all_dims(c.rank(0))));
  c.add_result(c.dtype(0), Dims());
  return {};
}

Status extremum_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(c.not_complex());
  const auto mask = dims_mask(c.attributes, 0, c.rank(0), c.op);
  if (!mask.ok()) return mask.status();
  TT_RETURN_IF_ERROR(not_over_nothing(c, *mask));
  return add_reduced(c, c.dtype(0), 0, 1);
}

Status extremum_dim_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(extremum_infer(c));
  c.add_result(DType::kI64, Dims(c.results[0].geometry.shape));
  return {};
}

Status arg_infer(InferContext& c) {
  if (c.dtype(0) == DType::kBool) return c.fail("not implemented for bool");
  TT_RETURN_IF_ERROR(extremum_infer(c));
  c.results[0].dtype = DType::kI64;
  return {};
}

// ---------------------------------------------------------------- derivatives

std::uint32_t mask_of(VjpContext& c, std::size_t dims) {
  const core::Layout& x = c.operand_layout(0);
  return *dims_mask(c.attributes(), dims, x.geometry.rank(), "");
}

// A reduced tensor with its reduced dimensions restored as size 1.
Var restored(VjpContext& c, const Var& reduced, std::uint32_t mask) {
  return reshape(reduced, reduced_shape(c.operand_layout(0).geometry.shape, mask, true));
}

void sum_vjp(VjpContext& c) {
  const Dims& shape = c.operand_layout(0).geometry.shape;
  c.give(0, expand(restored(c, c.gradient(), mask_of(c, 0)), shape));
}

void nan_sum_vjp(VjpContext& c) {
  const Var g = restored(c, c.gradient(), mask_of(c, 0));
  c.give(0, where(unary("isnan", c.operand(0)), Var(0), g));
}

void mean_vjp(VjpContext& c) {
  const Dims& shape = c.operand_layout(0).geometry.shape;
  const std::uint32_t mask = mask_of(c, 0);
  const Var share = c.gradient() / Var(static_cast<double>(reduced_count(shape, mask)));
  c.give(0, expand(restored(c, share, mask), shape));
}

void prod_vjp(VjpContext& c) {
  static const OpRef others("product_of_others");
  const Var x = c.operand(0);
  const std::uint32_t mask = mask_of(c, 0);
  const Var g = restored(c, c.gradient(), mask);
  if (c.attributes().has(0)) {
    c.give(0, g * conj(apply(others, {x}, {c.attributes().at(0)})));
  } else {
    const Dims flat{core::numel(x.shape())};
    const Var rest = apply(others, {reshape(x, flat)}, {Attribute::of(0)});
    c.give(0, g * reshape(conj(rest), x.shape()));
  }
}

// y = before * after, the products of the elements on each side; both are recurrences.
void product_of_others_vjp(VjpContext& c) {
  const Var x = conj(c.operand(0)), g = c.gradient();
  const int rank = x.rank();
  if (rank == 0 || core::numel(x.shape()) == 0) {
    return c.give(0, zeros(c.builder(), c.operand_layout(0)));
  }
  const int dim = *core::normalize_dim(c.attributes().integer(0), rank, "");
  const Var before = recurrence(x, one_at_end(x, dim, false), dim, Direction::kForward, false);
  const Var after = recurrence(x, one_at_end(x, dim, true), dim, Direction::kBackward, false);
  const Var of_before = recurrence(x, g * after, dim, Direction::kBackward, true);
  const Var of_after = recurrence(x, g * before, dim, Direction::kForward, true);
  c.give(0, shifted(of_before, dim, Direction::kBackward) * before +
                shifted(of_after, dim, Direction::kForward) * after);
}

// Equal extrema share the gradient.
void share(VjpContext& c, std::uint32_t mask, const Var& key) {
  const Var equal = binary("eq", key, restored(c, c.result(), mask));
  const Dims dims = dims_of(mask);
  const Var count = dims.empty() ? equal : sum(equal, dims, true);
  c.give(0, where(equal, restored(c, c.gradient(), mask) / count, Var(0)));
}
void extremum_vjp(VjpContext& c) { share(c, mask_of(c, 0), c.operand(0)); }
void whole_extremum_vjp(VjpContext& c) {
  share(c, all_dims(c.operand_layout(0).geometry.rank()), c.operand(0));
}

void extremum_dim_vjp(VjpContext& c) {
  static const OpRef scatter("scatter_add");
  const std::uint32_t mask = mask_of(c, 0);
  const Var base = zeros(c.builder(), c.operand_layout(0));
  c.give(0, apply(scatter, {base, restored(c, c.result(1), mask), restored(c, c.gradient(), mask)},
                  {c.attributes().at(0)}));
}

void give_variance(VjpContext& c, const Var& g, std::uint32_t mask) {
  static const OpRef mean("mean");
  const Var x = c.operand(0);
  const double n = static_cast<double>(reduced_count(x.shape(), mask));
  const Dims dims = dims_of(mask);
  const Var center = apply(mean, {x}, {Attribute::of(dims), Attribute::of(true)});
  c.give(0, restored(c, g, mask) * Var(2.0 / (n - c.attributes().real(1))) * (x - center));
}
void var_vjp(VjpContext& c) { give_variance(c, c.gradient(), mask_of(c, 0)); }
void std_vjp(VjpContext& c) {
  const Var std = c.result(), zero = binary("eq", std, Var(0));
  // The divisor is never 0, because the derivative of this derivative would be 0 / 0 otherwise.
  const Var divisor = where(zero, Var(1), std * Var(2));
  const Var g = where(zero, Var(0), c.gradient() / divisor);
  give_variance(c, g, mask_of(c, 0));
}

Var direction(const Var& x) { return unary(core::is_complex(x.dtype()) ? "sgn" : "sign", x); }

void norm_vjp(VjpContext& c) {
  const double p = c.attributes().real(0);
  const std::uint32_t mask = mask_of(c, 1);
  const Var x = c.operand(0), r = restored(c, c.result(), mask),
            g = restored(c, c.gradient(), mask);
  const auto unless_zero = [](const Var& what, const Var& value) {
    return where(binary("eq", what, Var(0)), Var(0), value);
  };
  // Replaces 0 by 1 in what is divided by or raised to a power, because the derivatives of this
  // derivative would be NaN there otherwise.
  const auto not_zero = [](const Var& what) {
    return where(binary("eq", what, Var(0)), Var(1), what);
  };
  if (p == 0) {
    c.give(0, zeros(c.builder(), c.operand_layout(0)));
  } else if (p == 1) {
    c.give(0, g * direction(x));
  } else if (p == 2) {
    c.give(0, x * unless_zero(r, g / not_zero(r)));
  } else if (p == std::numeric_limits<double>::infinity() ||
             p == -std::numeric_limits<double>::infinity()) {
    const Var equal = binary("eq", unary("abs", x), r);
    const Dims dims = dims_of(mask);
    const Var count = dims.empty() ? equal : sum(equal, dims, true);
    c.give(0, where(equal, direction(x) * (g / count), Var(0)));
  } else {
    const Var power = direction(x) * binary("pow", unary("abs", not_zero(x)), Var(p - 1));
    c.give(0, unless_zero(x, power) * unless_zero(r, g * binary("pow", not_zero(r), Var(1 - p))));
  }
}

void logsumexp_vjp(VjpContext& c) {
  const std::uint32_t mask = mask_of(c, 0);
  const Var weights = unary("exp", c.operand(0) - restored(c, c.result(), mask));
  c.give(0, restored(c, c.gradient(), mask) * weights);
}

constexpr std::string_view kSteps = "the result is piecewise constant";

}  // namespace

std::vector<OpDef> reduction_ops() {
  const std::vector<Save> x_and_result = {{.slot = 0}, {.slot = kResult}};
  return {
      {.signature =
           "sum(Tensor x, int[]? dim=None, bool keepdim=False, dtype? dtype=None) -> Tensor",
       .doc = "Sum over dim (all dims if None). Integers and bools are summed as int64.",
       .infer = sum_infer,
       .vjp = sum_vjp},
      {.signature =
           "nan_sum(Tensor x, int[]? dim=None, bool keepdim=False, dtype? dtype=None) -> Tensor",
       .doc = "Sum over dim (all dims if None) of what is not NaN. Real numbers only.",
       .infer =
           [](InferContext& c) {
             TT_RETURN_IF_ERROR(sum_infer(c));
             const bool complex =
                 core::is_complex(c.dtype(0)) || core::is_complex(c.results[0].dtype);
             return complex ? c.fail("does not support complex numbers") : Status();
           },
       .vjp = nan_sum_vjp,
       .saves = {{.slot = 0}},
       .internal = true},
      {.signature =
           "mean(Tensor x, int[]? dim=None, bool keepdim=False, dtype? dtype=None) -> Tensor",
       .doc = "Arithmetic mean over dim (all dims if None); NaN over no elements.",
       .infer = mean_infer,
       .vjp = mean_vjp},
      {.signature =
           "prod(Tensor x, int? dim=None, bool keepdim=False, dtype? dtype=None) -> Tensor",
       .doc = "Product over one dim or over all. Integers and bools are multiplied as int64.",
       .infer = sum_infer,
       .vjp = prod_vjp,
       .saves = {{.slot = 0}}},
      {.signature = "product_of_others(Tensor x, int dim) -> Tensor",
       .doc = "For each element the product of the others along dim: the derivative of prod.",
       .infer =
           [](InferContext& c) {
             TT_RETURN_IF_ERROR(inexact_only(c));
             TT_RETURN_IF_ERROR(
                 core::normalize_dim(c.attributes.integer(0), c.rank(0), c.op).status());
             c.add_result(c.dtype(0), c.shape(0));
             return Status();
           },
       .vjp = product_of_others_vjp,
       .saves = {{.slot = 0}},
       .internal = true},
      {.signature = "max(Tensor x) -> Tensor",
       .doc = "Largest element of all; NaN if there is one. Equal ones share the gradient.",
       .infer = whole_extremum_infer,
       .vjp = whole_extremum_vjp,
       .saves = x_and_result},
      {.signature = "min(Tensor x) -> Tensor",
       .doc = "Smallest element of all; NaN if there is one. Equal ones share the gradient.",
       .infer = whole_extremum_infer,
       .vjp = whole_extremum_vjp,
       .saves = x_and_result},
      {.signature =
           "max_dim(Tensor x, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
       .doc = "Largest element along dim and the index (int64) of its first occurrence, which gets "
              "the gradient.",
       .infer = extremum_dim_infer,
       .vjp = extremum_dim_vjp,
       .saves = {{.slot = kResult + 1}}},
      {.signature =
           "min_dim(Tensor x, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
       .doc =
           "Smallest element along dim and the index (int64) of its first occurrence, which gets "
           "the gradient.",
       .infer = extremum_dim_infer,
       .vjp = extremum_dim_vjp,
       .saves = {{.slot = kResult + 1}}},
      {.signature = "amax(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor",
       .doc = "Largest element over dim (all dims if None). Equal ones share the gradient.",
       .infer = extremum_infer,
       .vjp = extremum_vjp,
       .saves = x_and_result},
      {.signature = "amin(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor",
       .doc = "Smallest element over dim (all dims if None). Equal ones share the gradient.",
       .infer = extremum_infer,
       .vjp = extremum_vjp,
       .saves = x_and_result},
      {.signature = "argmax(Tensor x, int? dim=None, bool keepdim=False) -> Tensor",
       .doc = "Index (int64) of the first largest element along dim, or into the flattened tensor.",
       .infer = arg_infer,
       .not_differentiable = kSteps},
      {.signature = "argmin(Tensor x, int? dim=None, bool keepdim=False) -> Tensor",
       .doc =
           "Index (int64) of the first smallest element along dim, or into the flattened tensor.",
       .infer = arg_infer,
       .not_differentiable = kSteps},
      {.signature = "any(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor",
       .doc = "Is any element not zero? bool (uint8 for uint8); false over no elements.",
       .infer = truth_infer,
       .not_differentiable = kSteps},
      {.signature = "all(Tensor x, int[]? dim=None, bool keepdim=False) -> Tensor",
       .doc = "Are all elements not zero? bool (uint8 for uint8); true over no elements.",
       .infer = truth_infer,
       .not_differentiable = kSteps},
      {.signature = "count_nonzero(Tensor x, int[]? dim=None) -> Tensor",
       .doc = "How many elements over dim are not zero, int64. NaN is not zero.",
       .infer = count_infer,
       .not_differentiable = kSteps},
      {.signature =
           "var(Tensor x, int[]? dim=None, float correction=1, bool keepdim=False) -> Tensor",
       .doc = "Variance over dim: squared distances from the mean, summed, over (n - correction).",
       .infer = spread_infer,
       .vjp = var_vjp,
       .saves = {{.slot = 0}}},
      {.signature =
           "std(Tensor x, int[]? dim=None, float correction=1, bool keepdim=False) -> Tensor",
       .doc = "Standard deviation over dim: the square root of var.",
       .infer = spread_infer,
       .vjp = std_vjp,
       .saves = x_and_result},
      {.signature = "norm(Tensor x, float p=2, int[]? dim=None, bool keepdim=False, "
                    "dtype? dtype=None) -> Tensor",
       .doc = "Vector norm over dim (all dims if None): sum(|x|^p)^(1/p); p may be 0 (how many are "
              "not "
              "zero), inf or -inf (largest, smallest |x|).",
       .infer = norm_infer,
       .vjp = norm_vjp,
       .saves = x_and_result},
      {.signature = "logsumexp(Tensor x, int[] dim, bool keepdim=False) -> Tensor",
       .doc = "log(sum(exp(x))) over dim, computed without overflow.",
       .infer = logsumexp_infer,
       .vjp = logsumexp_vjp,
       .saves = x_and_result},
  };
}

}  // namespace teletensor::ops
