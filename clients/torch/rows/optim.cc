// Whole steps of optimizers, and the gradient scaler.

#include "clients/torch/call.h"

namespace teletensor::torch {
namespace {

using core::Attribute;

// With a gradient scaler a fused optimizer divides the gradients by the scale itself, and leaves
// everything as it is where an infinity was found. The operand that says so is returned.
Var unscaled(Call& c, const std::vector<Var>& gradients) {
  if (const Var scale = c.var("grad_scale"); !scale.absent()) {
    for (const Var& each : gradients) c.write(each, each / scale);
  }
  const Var found = c.var("found_inf");
  return found.absent() ? Var(0) : found;
}

// One instruction a parameter: each has its own count of steps.
void adam(Call& c, bool decoupled) {
  static const ops::OpRef op("adam_step");
  const auto params = c.vars("self"), grads = c.vars("grads"), averages = c.vars("exp_avgs"),
             squares = c.vars("exp_avg_sqs"), largest = c.vars("max_exp_avg_sqs"),
             steps = c.vars("state_steps");
  const bool amsgrad = c.flag("amsgrad");
  const Var lr = c.var("lr"), skip = unscaled(c, grads);
  for (std::size_t i = 0; i < params.size() && c.session.status().ok(); ++i) {
    std::vector<Var> arguments{params[i], grads[i], averages[i], squares[i]};
    if (amsgrad) arguments.push_back(largest[i]);
    for (const Var& each : {lr, c.var("beta1"), c.var("beta2"), c.var("eps"), c.var("weight_decay"),
                            steps[i], skip}) {
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

void fused_sgd(Call& c) {
  static const ops::OpRef op("sgd_step");
  const auto params = c.vars("self"), grads = c.vars("grads"),
             buffers = c.vars("momentum_buffer_list");
  std::vector<Var> arguments = params;
  arguments.insert(arguments.end(), grads.begin(), grads.end());
  arguments.insert(arguments.end(), buffers.begin(), buffers.end());
  const Var skip = unscaled(c, grads);
  for (const char* name : {"lr", "momentum", "dampening", "weight_decay"}) {
    arguments.push_back(c.var(name));
  }
  arguments.push_back(skip);
  const auto count = [](const std::vector<Var>& list) {
    return static_cast<std::uint32_t>(list.size());
  };
  const std::uint32_t counts[] = {count(params), count(grads), count(buffers)};
  c.run_all(op, arguments,
            {Attribute::of(c.flag("nesterov")), Attribute::of(c.flag("maximize")),
             Attribute::of(c.flag("is_first_step"))},
            counts);
}
void fused_adagrad(Call& c) {
  static const ops::OpRef op("adagrad_step");
  const auto params = c.vars("self"), grads = c.vars("grads"), sums = c.vars("state_sums"),
             steps = c.vars("state_steps");
  const Var skip = unscaled(c, grads);
  for (std::size_t i = 0; i < params.size() && c.session.status().ok(); ++i) {
    const Var arguments[] = {params[i],
                             grads[i],
                             sums[i],
                             c.var("lr"),
                             c.var("lr_decay"),
                             c.var("eps"),
                             c.var("weight_decay"),
                             steps[i],
                             skip};
    const std::uint32_t counts[] = {1, 1, 1};
    c.run_all(op, arguments, {Attribute::of(c.flag("maximize"))}, counts);
  }
}

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
    {"_fused_sgd_",
     "(self, grads, momentum_buffer_list, weight_decay, momentum, lr, dampening, nesterov, "
     "maximize, is_first_step, grad_scale, found_inf)",
     fused_sgd},
    {"_fused_adagrad_",
     "(self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, "
     "grad_scale, found_inf)",
     fused_adagrad},
    {"_amp_foreach_non_finite_check_and_unscale_", "(self, found_inf, inv_scale)", unscale},
    {"_amp_update_scale_",
     "(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, "
     "growth_interval)",
     update_scale},
};

}  // namespace

std::span<const Row> optimizer_rows() { return kOptimizerRows; }

}  // namespace teletensor::torch
