// New tensors, random numbers.

#include <cmath>
#include <limits>

#include "clients/torch/call.h"

namespace teletensor::torch {
namespace {

using core::Attribute;

// The numbers that random_() draws from without bounds: all that are not negative, and of a
// floating dtype the integers that it has without gaps.
std::int64_t bound_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return 2;
    case DType::kU8:
      return 256;
    case DType::kI8:
      return 128;
    case DType::kI16:
      return 32768;
    case DType::kI32:
      return std::int64_t{1} << 31;
    case DType::kF16:
      return 2049;
    case DType::kBF16:
      return 257;
    case DType::kF32:
      return (std::int64_t{1} << 24) + 1;
    case DType::kF64:
      return (std::int64_t{1} << 53) + 1;
    default:
      return std::numeric_limits<std::int64_t>::max();
  }
}
void random(Call& c) {
  static const ops::OpRef op("random_from");
  const Var x = c.var("self");
  if (x.absent()) return;
  const std::int64_t low = c.integer("from"), high = c.integer("to", bound_of(x.dtype()));
  c.run_inplace(op, {x}, c.with_random({Attribute::of(low), Attribute::of(high)}));
}

Var uniform_like(Call& c, const Var& x) {
  static const ops::OpRef op("uniform");
  return c.run(op, {x}, c.with_random({Attribute::of(0.0), Attribute::of(1.0)}));
}
// By the inverse of the distribution function.
void exponential(Call& c) {
  const Var x = c.var("self");
  if (x.absent()) return;
  c.give(ops::unary("log1p", -uniform_like(c, x)) * (-1 / c.real("lambd")));
}
void bernoulli_of(Call& c) {
  static const ops::OpRef op("bernoulli");
  const Var x = c.var("self"), p = c.var("p");
  if (x.absent() || p.absent()) return;
  const Var drawn = c.run(op, {ops::expand(p, x.shape())}, c.with_random({}));
  c.give(drawn.absent() || drawn.dtype() == x.dtype() ? drawn : ops::cast(drawn, x.dtype()));
}
void bernoulli_with(Call& c) {
  static const ops::OpRef op("bernoulli_p");
  if (c.value("p").kind == TT_TENSOR || c.value("p").kind == TT_CPU_SCALAR) return bernoulli_of(c);
  c.give(c.run(op, {c.var("self")}, c.with_random({Attribute::of(c.real("p"))})));
}

constexpr Row kCreationRows[] = {
    {"arange", "(start, end, step, out)"},
    {"linspace", "(start, end, steps, out)"},
    {"eye", "(n, m?, out)"},
    {"randperm", "(n, out)"},
    {"normal", "(self, mean, std)"},
    {"uniform", "(self, from, to)"},
    {"random_", "(self, from?, to?)", random},
    {"exponential_", "(self, lambd)", exponential},
    {"bernoulli", "(self)"},
    {"bernoulli", "(self, p)", bernoulli_with},
    {"multinomial", "(self, num_samples, replacement)"},
    {"poisson", "(self)"},
};

}  // namespace

std::span<const Row> creation_rows() { return kCreationRows; }

}  // namespace teletensor::torch
