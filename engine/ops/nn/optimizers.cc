// Optimizer steps over lists of parameters: one instruction for a whole model. The formulas and the
// order of operations are PyTorch's (torch.optim, single tensor forms).

#include "engine/ops/families.h"

namespace teletensor::ops {
namespace {

using core::Status;

// The hyperparameters end with `skip`: if it is not 0, nothing changes.
constexpr std::string_view kStep = "a step of an optimizer happens outside of the graph";

// Checks amp_unscale(grads, found_inf, inv_scale).
Status infer_unscale(InferContext& c) {
  for (std::size_t i = 0; i < c.counts[0]; ++i) {
    if (!core::is_floating(c.dtype(i))) {
      return c.fail("grads must be floating point, number " + std::to_string(i) + " is " +
                    std::string(core::name_of(c.dtype(i))));
    }
  }
  const std::size_t found = c.counts[0];
  if (c.counts[1] != 1 || c.dtype(found) != core::DType::kF32 || c.geometry(found).numel() != 1) {
    return c.fail("found_inf is one float32 tensor of one element");
  }
  const OperandInfo& scale = c.operands[found + 1];
  if (scale.absent() || (scale.tensor() && c.geometry(found + 1).numel() != 1)) {
    return c.fail("inv_scale is a number or a tensor of one element");
  }
  return {};
}

// The operands begin with lists: params, grads, and for each kind of state a list with one tensor
// per param, with its shape and a floating dtype. The first kNeeded lists are required; the other
// lists may be absent (empty).
template <std::size_t kNeeded>
Status infer_step(InferContext& c) {
  const std::size_t count = c.counts[0];
  const auto name = [&c](std::size_t list) { return catalog().find(c.op)->parameters[list].name; };
  std::size_t at = 0;
  for (std::size_t list = 0; list < c.counts.size(); ++list) {
    const std::size_t length = c.counts[list];
    if (length != count && !(length == 0 && list >= kNeeded)) {
      return c.fail(std::to_string(length) + " " + name(list) + " for " + std::to_string(count) +
                    " params");
    }
    for (std::size_t i = 0; i < length; ++i, ++at) {
      if (!core::is_floating(c.dtype(at))) {
        return c.fail(name(list) + " must be floating point, number " + std::to_string(i) + " is " +
                      std::string(core::name_of(c.dtype(at))));
      }
      if (!(c.shape(at) == c.shape(i))) {
        return c.fail("shapes of params and " + name(list) + " differ: " +
                      core::to_string(c.shape(i)) + " and " + core::to_string(c.shape(at)));
      }
    }
  }
  for (; at < c.operands.size(); ++at) {
    if (c.operands[at].absent() || (c.operands[at].tensor() && c.geometry(at).numel() != 1)) {
      return c.fail("hyperparameters are numbers or tensors of one element");
    }
  }
  return {};
}

Status infer_adam(InferContext& c) {
  TT_RETURN_IF_ERROR(infer_step<4>(c));
  if (c.attributes.boolean(0) && c.counts[4] != c.counts[0]) {
    return c.fail("amsgrad needs max_exp_avg_sqs");
  }
  return {};
}

OpDef step(std::string_view signature, std::string_view doc, Infer infer, std::vector<int> mutates,
           int revision = 1) {
  return {.signature = signature,
          .doc = doc,
          .infer = infer,
          .not_differentiable = kStep,
          .inplace = Inplace::kElementwise,
          .mutates = std::move(mutates),
          .revision = revision};
}

}  // namespace

std::vector<OpDef> optimizer_ops() {
  return {
      step("sgd_step(Tensor[] params, Tensor[] grads, Tensor[] buffers, Operand lr, Operand "
           "momentum=0, Operand dampening=0, Operand weight_decay=0, Operand skip=0, bool "
           "nesterov=False, "
           "bool maximize=False, bool first=False) -> Tensor[]",
           "One step of stochastic gradient descent on all params. With buffers: buffer = momentum "
           "* buffer + (1 - dampening) * grad (just grad when first), and the step follows it "
           "(nesterov: grad + momentum * buffer). Writes params and buffers.",
           infer_step<2>, {0, 2}, 2),
      step(
          "adam_step(Tensor[] params, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_avg_sqs, "
          "Tensor[] max_exp_avg_sqs, Operand lr, Operand beta1=0.9, Operand beta2=0.999, "
          "Operand eps=1e-8, Operand weight_decay=0, Operand step=1, Operand skip=0, bool "
          "amsgrad=False, "
          "bool decoupled=False, bool maximize=False) -> Tensor[]",
          "One step of Adam (Kingma and Ba, 2015) on all params, AdamW with decoupled; step counts "
          "from 1. Writes params, exp_avgs, exp_avg_sqs and, with amsgrad, max_exp_avg_sqs.",
          infer_adam, {0, 2, 3, 4}, 2),
      step("adamax_step(Tensor[] params, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_infs, "
           "Operand lr, Operand beta1=0.9, Operand beta2=0.999, Operand eps=1e-8, Operand "
           "weight_decay=0, Operand step=1, Operand skip=0, bool maximize=False) -> Tensor[]",
           "One step of Adamax (Kingma and Ba, 2015) on all params: the infinity norm exp_inf = "
           "max(beta2 * exp_inf, |grad| + eps) in place of the root of squares.",
           infer_step<4>, {0, 2, 3}),
      step("nadam_step(Tensor[] params, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_avg_sqs, "
           "Operand lr, Operand beta1, Operand beta2, Operand eps, Operand weight_decay, Operand "
           "mu, Operand mu_next, Operand mu_product, Operand step, Operand skip=0, bool "
           "decoupled=False, bool "
           "maximize=False) -> Tensor[]",
           "One step of NAdam (Dozat, 2016) on all params; mu and mu_next are the momenta of this "
           "step and the next, mu_product the product of all up to this one.",
           infer_step<4>, {0, 2, 3}),
      step("radam_step(Tensor[] params, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_avg_sqs, "
           "Operand lr, Operand beta1=0.9, Operand beta2=0.999, Operand eps=1e-8, Operand "
           "weight_decay=0, Operand step=1, Operand skip=0, bool decoupled=False, bool "
           "maximize=False) -> Tensor[]",
           "One step of RAdam (Liu et al., 2019) on all params: without the root of squares while "
           "these are not yet known well.",
           infer_step<4>, {0, 2, 3}),
      step("adagrad_step(Tensor[] params, Tensor[] grads, Tensor[] sums, Operand lr, Operand "
           "lr_decay=0, Operand eps=1e-10, Operand weight_decay=0, Operand step=1, Operand skip=0, "
           "bool "
           "maximize=False) -> Tensor[]",
           "One step of Adagrad (Duchi et al., 2011) on all params: sum += grad^2, param -= lr / "
           "(1 + (step - 1) * lr_decay) * grad / (sqrt(sum) + eps).",
           infer_step<3>, {0, 2}),
      step("adadelta_step(Tensor[] params, Tensor[] grads, Tensor[] square_avgs, Tensor[] "
           "acc_deltas, Operand lr, Operand rho=0.9, Operand eps=1e-6, Operand weight_decay=0, "
           "Operand skip=0, bool maximize=False) -> Tensor[]",
           "One step of Adadelta (Zeiler, 2012) on all params.", infer_step<4>, {0, 2, 3}),
      step("rmsprop_step(Tensor[] params, Tensor[] grads, Tensor[] square_avgs, Tensor[] "
           "momentum_buffers, Tensor[] grad_avgs, Operand lr, Operand alpha=0.99, Operand "
           "eps=1e-8, Operand weight_decay=0, Operand momentum=0, Operand skip=0, bool "
           "maximize=False) -> Tensor[]",
           "One step of RMSprop (Hinton, 2012) on all params, with momentum if there are "
           "momentum_buffers, with centered squares (Graves, 2013) if there are grad_avgs.",
           infer_step<3>, {0, 2, 3, 4}),
      step("rprop_step(Tensor[] params, Tensor[] grads, Tensor[] prevs, Tensor[] step_sizes, "
           "Operand eta_minus=0.5, Operand eta_plus=1.2, Operand step_min=1e-6, Operand "
           "step_max=50, Operand skip=0, bool maximize=False) -> Tensor[]",
           "One step of resilient backpropagation (Riedmiller and Braun, 1993) on all params: only "
           "the sign of grad counts.",
           infer_step<4>, {0, 2, 3}),
      step("asgd_step(Tensor[] params, Tensor[] grads, Tensor[] axs, Operand eta, Operand "
           "lambd=1e-4, Operand mu=1, Operand weight_decay=0, Operand skip=0, bool maximize=False) "
           "-> Tensor[]",
           "One step of averaged stochastic gradient descent (Polyak and Juditsky, 1992) on all "
           "params; ax is the average, the newest param having the weight mu.",
           infer_step<3>, {0, 2}),
      step("amp_unscale(Tensor[] grads, Tensor[] found_inf, Operand inv_scale) -> Tensor[]",
           "Multiplies all grads by inv_scale; found_inf, one float32 element, becomes 1 if one of "
           "them was infinite or NaN, else it stays.",
           infer_unscale, {0, 1}),
  };
}

}  // namespace teletensor::ops
