// Whole steps of optimizers, and the gradient scaler.

#include "clients/torch/call.h"

namespace teletensor::torch {
namespace {

using core::Attribute;

// One instruction a parameter: each has its own count of steps.
void adam(Call& c, bool decoupled) {
  static const ops::OpRef op("adam_step");
  if (!c.absent("grad_scale") || !c.absent("found_inf")) {
    return c.fail(core::unimplemented("a fused optimizer with a gradient scaler"));
  }
  const auto params = c.vars("self"), grads = c.vars("grads"), averages = c.vars("exp_avgs"),
             squares = c.vars("exp_avg_sqs"), largest = c.vars("max_exp_avg_sqs"),
             steps = c.vars("state_steps");
  const bool amsgrad = c.flag("amsgrad");
  const Var lr = c.var("lr");
  for (std::size_t i = 0; i < params.size() && c.session.status().ok(); ++i) {
    std::vector<Var> arguments{params[i], grads[i], averages[i], squares[i]};
    if (amsgrad) arguments.push_back(largest[i]);
    for (const Var& each : {lr, c.var("beta1"), c.var("beta2"), c.var("eps"), c.var("weight_decay"),
                            steps[i], Var(0)}) {
      arguments.push_back(each);
    }
    const std::uint32_t counts[] = {1, 1, 1, 1, amsgrad ? 1u : 0u};
    c.run_all(op, arguments,
              {Attribute::of(amsgrad), Attribute::of(decoupled), Attribute::of(c.flag("maximize"))},
              counts);
  }
}
void fused_adam(Call& c) { adam(c, false); }
void fused_adamw(Call& c) { adam(c, true); }

void unscale(Call& c) {
  static const ops::OpRef op("amp_unscale");
  std::vector<Var> arguments = c.vars("self");
  const std::uint32_t counts[] = {static_cast<std::uint32_t>(arguments.size()), 1};
  arguments.push_back(c.var("found_inf"));
  arguments.push_back(c.var("inv_scale"));
  c.run_all(op, arguments, {}, counts);
}

// The scale grows after `growth_interval` steps without an infinity, and falls at each with one.
void update_scale(Call& c) {
  const Var scale = c.var("self"), tracker = c.var("growth_tracker");
  if (scale.absent() || tracker.absent()) return;
  const Var found = ops::binary("ne", c.var("found_inf"), 0);
  const Var count = tracker + Var(1);
  const Var whole = ops::binary("eq", count, c.var("growth_interval"));
  const Var grown = scale * c.real("scale_growth_factor");
  const Var better =
      ops::where(ops::binary("logical_and", whole, ops::unary("isfinite", grown)), grown, scale);
  const Var next = ops::where(found, scale * c.real("scale_backoff_factor"), better);
  c.write(tracker, ops::where(ops::binary("logical_or", found, whole), 0, count));
  c.write(scale, next);
}

constexpr Row kOptimizerRows[] = {
    {"_fused_adam_",
     "(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, "
     "weight_decay, eps, amsgrad, maximize, grad_scale, found_inf)",
     fused_adam},
    {"_fused_adamw_",
     "(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, "
     "weight_decay, eps, amsgrad, maximize, grad_scale, found_inf)",
     fused_adamw},
    {"_amp_foreach_non_finite_check_and_unscale_", "(self, found_inf, inv_scale)", unscale},
    {"_amp_update_scale_",
     "(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, "
     "growth_interval)",
     update_scale},
};

}  // namespace

std::span<const Row> optimizer_rows() { return kOptimizerRows; }

}  // namespace teletensor::torch
