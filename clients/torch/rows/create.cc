// New tensors, random numbers.

#include <algorithm>
#include <cmath>
#include <limits>

#include "clients/torch/compose.h"

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
// Fails if a parameter of a distribution is out of its range, which `rule` says.
bool in_range(Call& c, bool valid, std::string_view rule, double value) {
  if (!valid) {
    c.fail(core::invalid(std::string(c.name()) + " expects " + std::string(rule) + ", but found " +
                         std::to_string(value)));
  }
  return valid;
}
// By the inverse of the distribution function.
void exponential(Call& c) {
  const Var x = c.var("self");
  const double rate = c.real("lambd");
  if (!in_range(c, rate > 0, "lambda > 0", rate) || x.absent()) return;
  c.give(ops::unary("log1p", -uniform_like(c, x)) * (-1 / rate));
}
// Fails for integers, of which these distributions have rows on the CPU only.
Var floating_self(Call& c) {
  const Var x = c.var("self");
  if (!core::is_floating(x.dtype())) c.fail(core::unimplemented("not a floating dtype"));
  return x;
}
void cauchy(Call& c) {
  const Var x = floating_self(c);
  const double scale = c.real("sigma", 1);
  if (!in_range(c, scale > 0, "sigma > 0", scale)) return;
  if (x.absent() || !c.session.status().ok()) return;
  const Var angle = (uniform_like(c, x) - 0.5) * M_PI;
  c.give(ops::unary("tan", angle) * scale + c.real("median"));
}
void geometric(Call& c) {
  const Var x = c.var("self");
  const double p = c.real("p");
  if (!in_range(c, p > 0 && p < 1, "p in (0, 1)", p) || x.absent()) return;
  const Var like = core::is_floating(x.dtype()) ? x : ops::cast(x, DType::kF32);
  const Var trials = ops::unary("log1p", -uniform_like(c, like)) / std::log1p(-p);
  c.give(ops::cast(clamped(ops::unary("ceil", trials), 1, {}), x.dtype()));
}
Var normal_like(Call& c, const Var& x, double mean, double deviation) {
  static const ops::OpRef op("normal");
  return c.run(op, {x}, c.with_random({Attribute::of(mean), Attribute::of(deviation)}));
}
// The variance of a complex number is that of its two parts together.
void normal(Call& c) {
  const Var x = c.var("self");
  if (x.absent() || !core::is_complex(x.dtype())) return c.run_row();
  const Var like = ops::real(x);
  const double deviation = c.real("std", 1) / std::sqrt(2.0);
  const Var first = normal_like(c, like, c.real("mean"), deviation);
  c.give(made("complex", {first, normal_like(c, like, 0, deviation)}));
}
void log_normal(Call& c) {
  const Var x = floating_self(c);
  const double deviation = c.real("std", 2);
  if (!in_range(c, deviation > 0, "std > 0", deviation)) return;
  if (x.absent() || !c.session.status().ok()) return;
  c.give(ops::unary("exp", normal_like(c, x, c.real("mean", 1), deviation)));
}
// With a mean or a deviation for each element.
void normal_of(Call& c) {
  const Var mean = c.var("mean"), deviation = c.var("std");
  if (mean.absent() || deviation.absent()) return;
  const Var like = mean.is_number() ? deviation : deviation.is_number() ? mean : mean + deviation;
  if (!like.is_tensor()) return c.fail(core::unimplemented("two numbers"));
  c.give(normal_like(c, like, 0, 1) * deviation + mean);
}
void zeros(Call& c) {
  const DType dtype = c.dtype("dtype").value_or(DType::kF32);
  c.give(filled(c, c.ints("size"), core::Number::of_int(0), dtype));
}
// The indices of a triangle's elements, [2, count].
void triangle_indices(Call& c) {
  const std::int64_t rows = c.integer("row"), columns = c.integer("col"),
                     offset = c.integer("offset");
  const bool lower = c.name().starts_with("tril");
  if (rows < 0 || columns < 0) return c.fail(core::unimplemented("a negative size"));
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t edge = std::clamp<std::int64_t>(i + offset + (lower ? 1 : 0), 0, columns);
    count += lower ? edge : columns - edge;
  }
  const Var ones = filled(c, core::Dims{rows, columns}, core::Number::of_int(1), DType::kI64);
  const Var inside = made(lower ? "tril" : "triu", {ones}, {Attribute::of(offset)});
  const Var places = ops::transpose(made("nonzero", {inside}, {Attribute::of(count)}), 0, 1);
  const Var found = made("contiguous", {places});
  c.give(ops::cast(found, c.dtype("dtype").value_or(DType::kI64)));
}
void logspace(Call& c) {
  static const ops::OpRef linspace("linspace");
  const auto wanted = c.dtype("out");
  if (!wanted) return;
  const DType dtype = core::is_inexact(*wanted) ? *wanted : DType::kF64;
  const Var exponents =
      c.run(linspace, {c.var("start"), c.var("end")},
            {Attribute::of(c.integer("steps")), Attribute::of(dtype), Attribute::of(c.device)});
  c.give(ops::cast(ops::binary("pow", c.real("base", 10), exponents), *wanted));
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
    {"logspace", "(start, end, steps, base, out)", logspace},
    {"_efficientzerotensor", "(size, dtype)", zeros},
    {"tril_indices triu_indices", "(row, col, offset, dtype)", triangle_indices},
    {"eye", "(n, m?, out)"},
    {"randperm", "(n, out)"},
    {"normal", "normal(self, mean, std)", normal},
    {"normal", "(mean, std)", normal_of},
    {"log_normal_", "(self, mean, std)", log_normal},
    {"cauchy_", "(self, median, sigma)", cauchy},
    {"geometric_", "(self, p)", geometric},
    {"binomial", "(count, prob)"},
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
