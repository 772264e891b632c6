// Random numbers with Philox4x32-10, which is counter based: element i depends only on (seed,
// ordinal, i), so the numbers are the same on every device and for every split of the work. (J.
// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.)

#include <algorithm>
#include <cmath>

#include "engine/ops/families.h"
#include "engine/ops/functions.h"
#include "engine/ops/sizes.h"

namespace teletensor::ops {
namespace {

using core::Dims;
using core::DType;
using core::Status;

constexpr std::string_view kRandom = "its values do not depend on the operand's";

Status infer_creation(InferContext& c) {
  Dims shape;
  TT_RETURN_IF_ERROR(read_shape(c, 0, shape));
  const DType dtype = c.attributes.has(1) ? c.attributes.dtype(1) : c.default_dtype;
  TT_RETURN_IF_ERROR(c.only_floating(dtype));
  c.add_result(dtype, shape);
  return {};
}

// Adds a result of random numbers in the layout of the operand.
Status add_like(InferContext& c) {
  const core::Geometry* const like[] = {&c.geometry(0)};
  c.add_result(c.dtype(0), core::elementwise_layout(c.shape(0), like));
  return {};
}

Status infer_uniform(InferContext& c) {
  TT_RETURN_IF_ERROR(c.only_floating(c.dtype(0)));
  const double low = c.attributes.real(0), high = c.attributes.real(1);
  if (!std::isfinite(low) || !std::isfinite(high) || low > high) {
    return c.fail("needs finite bounds low <= high, got [" + std::to_string(low) + ", " +
                  std::to_string(high) + ")");
  }
  const double most = core::largest_of(c.dtype(0));
  if (-low > most || high > most || high - low > most) {
    return c.fail("bounds and their difference must not be above the largest " +
                  std::string(core::name_of(c.dtype(0))) + ", got " + std::to_string(low) +
                  " and " + std::to_string(high));
  }
  return add_like(c);
}

Status infer_normal(InferContext& c) {
  TT_RETURN_IF_ERROR(c.only_floating(c.dtype(0)));
  const double std = c.attributes.real(1);
  if (!(std >= 0)) return c.fail("std must not be negative, got " + std::to_string(std));
  return add_like(c);
}

Status check_range(InferContext& c, std::int64_t low, std::int64_t high, DType dtype) {
  if (low >= high) {
    return c.fail("needs low < high, got [" + std::to_string(low) + ", " + std::to_string(high) +
                  ")");
  }
  if (core::is_complex(dtype)) return c.not_defined_for(dtype);
  std::int64_t least = core::range_of(dtype).least;
  auto most = static_cast<std::int64_t>(
      std::min(core::range_of(dtype).most, static_cast<std::uint64_t>(INT64_MAX)));
  if (core::is_floating(dtype)) {  // integers that are not exact in the dtype are rounded to it
    most = dtype == DType::kF16 ? 65504 : INT64_MAX;
    least = dtype == DType::kF16 ? -most : INT64_MIN;
  }
  if (low < least || high - 1 > most) {
    return c.fail("[" + std::to_string(low) + ", " + std::to_string(high) + ") does not fit " +
                  std::string(core::name_of(dtype)));
  }
  return {};
}

Status infer_randint(InferContext& c) {
  const DType dtype = c.attributes.has(3) ? c.attributes.dtype(3) : DType::kI64;
  Dims shape;
  TT_RETURN_IF_ERROR(read_shape(c, 2, shape));
  TT_RETURN_IF_ERROR(check_range(c, c.attributes.integer(0), c.attributes.integer(1), dtype));
  c.add_result(dtype, shape);
  return {};
}

Status infer_random_from(InferContext& c) {
  TT_RETURN_IF_ERROR(check_range(c, c.attributes.integer(0), c.attributes.integer(1), c.dtype(0)));
  return add_like(c);
}

Status infer_randperm(InferContext& c) {
  const std::int64_t n = c.attributes.integer(0);
  const DType dtype = c.attributes.has(1) ? c.attributes.dtype(1) : DType::kI64;
  if (n < 0) return c.fail("n must not be negative, got " + std::to_string(n));
  if (n > 0) TT_RETURN_IF_ERROR(check_range(c, 0, n, dtype));
  c.add_result(dtype, Dims{n});
  return {};
}

// A tensor that random numbers overwrite has no gradient from its new contents.
void no_gradient(VjpContext& c) { c.give(0, zeros(c.builder(), c.operand_layout(0))); }

Status infer_bernoulli(InferContext& c) {
  TT_RETURN_IF_ERROR(c.only_floating(c.dtype(0)));
  return add_like(c);
}

Status check_probability(const InferContext& c, double p) {
  if (p >= 0 && p <= 1) return {};
  return c.fail("p must be in [0, 1], got " + std::to_string(p));
}

Status infer_bernoulli_p(InferContext& c) {
  TT_RETURN_IF_ERROR(check_probability(c, c.attributes.real(0)));
  return add_like(c);
}

Status infer_dropout(InferContext& c) {
  TT_RETURN_IF_ERROR(check_probability(c, c.attributes.real(0)));
  TT_RETURN_IF_ERROR(c.only_floating(c.dtype(0)));
  TT_RETURN_IF_ERROR(add_like(c));
  c.add_result(DType::kBool, c.results[0].geometry);
  return {};
}

void dropout_vjp(VjpContext& c) {
  const double p = c.attributes().real(0);
  c.give(0, c.gradient(0) * c.result(1) * Var(p < 1 ? 1 / (1 - p) : 0.0));
}

Status infer_multinomial(InferContext& c) {
  const std::int64_t samples = c.attributes.integer(0);
  const bool replacement = c.attributes.boolean(1);
  TT_RETURN_IF_ERROR(c.only_floating(c.dtype(0)));
  if (c.rank(0) != 1 && c.rank(0) != 2) {
    return c.fail("takes a vector or a matrix of weights, got " + core::to_string(c.shape(0)));
  }
  if (samples < 1) return c.fail("num_samples must be positive, got " + std::to_string(samples));
  const std::int64_t categories = c.shape(0).back();
  if (categories < 1) return c.fail("there are no categories");
  if (!replacement && samples > categories) {
    return c.fail("cannot take " + std::to_string(samples) + " of " + std::to_string(categories) +
                  " categories without replacement");
  }
  Dims shape = c.shape(0);
  shape[shape.size() - 1] = samples;
  c.add_result(DType::kI64, shape);
  return {};
}

}  // namespace

std::vector<OpDef> random_count_ops();  // random_counts.cc

std::vector<OpDef> random_ops() {
  std::vector<OpDef> all = {
      {.signature = "rand(int[] size, dtype? dtype=None, device? device=None, int seed=0, int "
                    "ordinal=0) -> Tensor",
       .doc = "Uniform random numbers in [0, 1).",
       .infer = infer_creation,
       .not_differentiable = kRandom,
       .random = true},
      {.signature = "randn(int[] size, dtype? dtype=None, device? device=None, int seed=0, int "
                    "ordinal=0) -> Tensor",
       .doc = "Random numbers of the standard normal distribution (Box-Muller).",
       .infer = infer_creation,
       .not_differentiable = kRandom,
       .random = true},
      {.signature =
           "randint(int low, int high, int[] size, dtype? dtype=None, device? device=None, "
           "int seed=0, int ordinal=0) -> Tensor",
       .doc = "Uniform random integers in [low, high); int64 without dtype.",
       .infer = infer_randint,
       .not_differentiable = kRandom,
       .random = true},
      {.signature = "randperm(int n, dtype? dtype=None, device? device=None, int seed=0, int "
                    "ordinal=0) -> Tensor",
       .doc = "A random permutation of 0 ... n-1; int64 without dtype.",
       .infer = infer_randperm,
       .not_differentiable = kRandom,
       .random = true},
      {.signature = "uniform(Tensor self, float low=0, float high=1, int seed=0, int ordinal=0) -> "
                    "Tensor",
       .doc = "Uniform random numbers in [low, high) in the layout of self.",
       .infer = infer_uniform,
       .vjp = no_gradient,
       .inplace = Inplace::kElementwise,
       .random = true,
       .revision = 2},
      {.signature = "normal(Tensor self, float mean=0, float std=1, int seed=0, int ordinal=0) -> "
                    "Tensor",
       .doc = "Normally distributed random numbers in the layout of self.",
       .infer = infer_normal,
       .vjp = no_gradient,
       .inplace = Inplace::kElementwise,
       .random = true,
       .revision = 2},
      {.signature = "random_from(Tensor self, int low, int high, int seed=0, int ordinal=0) -> "
                    "Tensor",
       .doc = "Uniform random integers in [low, high) in the dtype and layout of self.",
       .infer = infer_random_from,
       .vjp = no_gradient,
       .inplace = Inplace::kElementwise,
       .random = true,
       .revision = 2},
      {.signature = "bernoulli(Tensor p, int seed=0, int ordinal=0) -> Tensor",
       .doc = "1 with probability p, else 0, for each element of p.",
       .infer = infer_bernoulli,
       .vjp = no_gradient,
       .inplace = Inplace::kElementwise,
       .random = true},
      {.signature = "bernoulli_p(Tensor self, float p=0.5, int seed=0, int ordinal=0) -> Tensor",
       .doc = "1 with probability p, else 0, in the dtype and layout of self.",
       .infer = infer_bernoulli_p,
       .vjp = no_gradient,
       .inplace = Inplace::kElementwise,
       .random = true,
       .revision = 2},
      {.signature =
           "dropout(Tensor x, float p=0.5, int seed=0, int ordinal=0) -> (Tensor y, Tensor "
           "mask)",
       .doc =
           "x with each element set to 0 with probability p and the others divided by 1 - p, and "
           "the bool mask of those kept.",
       .infer = infer_dropout,
       .vjp = dropout_vjp,
       .saves = {{kResult + 1}},
       .random = true},
      {.signature =
           "multinomial(Tensor weights, int num_samples, bool replacement=False, int seed=0, "
           "int ordinal=0) -> Tensor",
       .doc = "Indices drawn with probabilities proportional to each row of weights.",
       .infer = infer_multinomial,
       .not_differentiable = "its result is an integer",
       .random = true},
  };
  for (OpDef& op : random_count_ops()) all.push_back(std::move(op));
  return all;
}

}  // namespace teletensor::ops
