#include "clients/torch/compose.h"

namespace teletensor::torch {
namespace {

using core::Attribute;

void var_mean(Call& c, std::string_view op) {
  const core::Dims dims = c.ints("dim");
  const Attribute over = dims.empty() ? Attribute::none() : Attribute::of(dims);
  const Attribute keepdim = Attribute::of(c.flag("keepdim"));
  static const ops::OpRef mean("mean");
  const Var x = c.var("self");
  c.give(c.run(ops::catalog().id(*ops::catalog().find(op)), {x},
               {over, Attribute::of(c.real("correction", 1)), keepdim}));
  c.give(c.run(mean, {x}, {over, keepdim, Attribute::none()}));
}
void var_and_mean(Call& c) { var_mean(c, "var"); }
void std_and_mean(Call& c) { var_mean(c, "std"); }

void aminmax(Call& c) {
  static const ops::OpRef amin("amin"), amax("amax");
  const Var x = c.var("self");
  const Attribute over =
      c.absent("dim") ? Attribute::none() : Attribute::of(core::Dims{c.integer("dim")});
  const Attribute keepdim = Attribute::of(c.flag("keepdim"));
  c.give(c.run(amin, {x}, {over, keepdim}));
  c.give(c.run(amax, {x}, {over, keepdim}));
}

// With half_to_float the result of a half is a float.
void softmax(Call& c) {
  static const ops::OpRef softmax("softmax"), log_softmax("log_softmax");
  c.give(c.run(c.name() == "_softmax" ? softmax : log_softmax, {c.var("self")},
               {Attribute::of(c.integer("dim")),
                c.flag("half_to_float") ? Attribute::of(DType::kF32) : Attribute::none()}));
}
void softmax_backward(Call& c) {
  static const ops::OpRef softmax("softmax_backward"), log_softmax("log_softmax_backward");
  const Var made =
      c.run(c.name() == "_softmax_backward_data" ? softmax : log_softmax,
            {c.var("grad_output"), c.var("output")}, {Attribute::of(c.integer("dim"))});
  const auto dtype = c.dtype("input_dtype");
  c.give(made.absent() || !dtype || *dtype == made.dtype() ? made : ops::cast(made, *dtype));
}

// The slices along a dimension whose norm is above `maxnorm` get that norm.
void renorm(Call& c) {
  const Var x = c.var("self");
  const auto dim = dim_of(c, c.integer("dim"), x.rank());
  if (!dim || x.rank() < 2) return c.fail(core::unimplemented("a vector"));
  core::Dims others;
  for (int i = 0; i < x.rank(); ++i) {
    if (i != *dim) others.push_back(i);
  }
  const double most = c.real("maxnorm");
  const Var size = made(
      "norm", {x},
      {Attribute::of(c.real("p")), Attribute::of(others), Attribute::of(true), Attribute::none()});
  const Var factor = ops::unary("reciprocal", size + 1e-7) * most;
  c.give(x * ops::where(ops::binary("gt", size, most), factor, 1));
}

void equal(Call& c) {
  static const ops::OpRef all("all");
  const Var x = c.var("self"), y = c.var("other");
  if (x.absent() || y.absent()) return;
  if (!(x.shape() == y.shape())) return c.give_integer(0);
  const Var same = c.run(all, {ops::binary("eq", x, y)}, {Attribute::none(), Attribute::of(false)});
  if (same.absent()) return;
  const auto value = c.integer_of(same);
  if (!value.ok()) return c.fail(value.status());
  c.give_integer(*value);
}

// The op has no complex dtypes. As PyTorch does, scales by the largest real part.
void logsumexp(Call& c) {
  const Var x = c.var("self");
  if (x.absent() || !core::is_complex(x.dtype())) return c.run_row();
  if (x.layout().geometry.numel() == 0) return c.fail(core::unimplemented("no elements"));
  const core::Dims dims = c.ints("dim");
  const Attribute over = dims.empty() ? Attribute::none() : Attribute::of(dims);
  const Var largest = made("amax", {ops::real(x)}, {over, Attribute::of(true)});
  const Var most = ops::where(ops::unary("isinf", largest), 0, largest);
  const Var total =
      made("sum", {ops::unary("exp", x - most)}, {over, Attribute::of(c.flag("keepdim"))});
  if (!total.absent()) c.give(ops::unary("log", total) + ops::reshape(most, total.shape()));
}

constexpr Row kReductionRows[] = {
    {"sum mean", "(self, dim?, keepdim?, dtype?)"},
    {"nansum", "nan_sum(self, dim?, keepdim?, dtype?)"},
    {"prod", "(self, dim?, keepdim?, dtype?)"},
    {"amax amin", "(self, dim, keepdim)"},
    {"max", "max_dim(self, dim, keepdim)"},
    {"min", "min_dim(self, dim, keepdim)"},
    {"max min median", "(self)"},
    {"median", "median_dim(self, dim, keepdim)"},
    {"argmax argmin", "(self, dim, keepdim)"},
    {"any all", "(self, dim?, keepdim?)"},
    {"count_nonzero", "(self, dim?)"},
    {"var std", "(self, dim, correction, keepdim)"},
    {"var_mean", "(self, dim, correction, keepdim)", var_and_mean},
    {"std_mean", "(self, dim, correction, keepdim)", std_and_mean},
    {"aminmax", "(self, dim, keepdim)", aminmax},
    {"norm", "norm(self, p, dim?, keepdim?, dtype?)"},
    {"linalg_vector_norm", "norm(self, ord, dim, keepdim, dtype)"},
    {"logsumexp", "logsumexp(self, dim, keepdim)", logsumexp},
    {"cumsum cumprod", "(self, dim, dtype)"},
    {"_logcumsumexp", "logcumsumexp(self, dim)"},
    {"sort", "(self, dim, descending, stable)"},
    {"topk", "(self, k, dim, largest, sorted)"},
    {"kthvalue", "(self, k, dim, keepdim)"},
    {"_softmax _log_softmax", "(self, dim, half_to_float)", softmax},
    {"_softmax_backward_data _log_softmax_backward_data", "(grad_output, output, dim, input_dtype)",
     softmax_backward},
    {"renorm", "(self, p, dim, maxnorm)", renorm},
    {"equal", "(self, other)", equal},
};

}  // namespace

std::span<const Row> reduction_rows() { return kReductionRows; }

}  // namespace teletensor::torch
