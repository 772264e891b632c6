// Optimizer steps over lists of parameters: one instruction for a whole model. Formulas and the
// order of operations are PyTorch's (torch.optim, single tensor forms).

#include "engine/ops/families.h"

namespace teletensor::ops {
namespace {

using core::Status;

constexpr std::string_view kStep = "a step of an optimizer happens outside of the graph";

// Lists of state have either no tensor or one for each parameter, of its shape and a dtype of
// floats.
Status check_lists(InferContext& c, std::span<const std::string_view> names) {
  const std::size_t count = c.counts[0];
  std::size_t at = 0;
  for (std::size_t list = 0; list < names.size(); ++list) {
    const std::size_t length = c.counts[list];
    const bool may_be_empty = list >= 2;
    if (length != count && !(length == 0 && may_be_empty)) {
      return c.fail(std::to_string(length) + " " + std::string(names[list]) + " for " +
                    std::to_string(count) + " params");
    }
    for (std::size_t i = 0; i < length; ++i, ++at) {
      if (!core::is_floating(c.dtype(at))) {
        return c.fail(std::string(names[list]) + " must be floating point, number " +
                      std::to_string(i) + " is " + std::string(core::name_of(c.dtype(at))));
      }
      if (!(c.shape(at) == c.shape(i))) {
        return c.fail("shapes of params and " + std::string(names[list]) + " differ: " +
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

Status infer_sgd(InferContext& c) {
  constexpr std::string_view kNames[] = {"params", "grads", "buffers"};
  return check_lists(c, kNames);
}

Status infer_adam(InferContext& c) {
  constexpr std::string_view kNames[] = {"params", "grads", "exp_avgs", "exp_avg_sqs",
                                         "max_exp_avg_sqs"};
  TT_RETURN_IF_ERROR(check_lists(c, kNames));
  if (c.counts[0] != c.counts[2] || c.counts[0] != c.counts[3]) {
    return c.fail("needs exp_avgs and exp_avg_sqs");
  }
  if (c.attributes.boolean(0) && c.counts[4] != c.counts[0]) {
    return c.fail("amsgrad needs max_exp_avg_sqs");
  }
  return {};
}

}  // namespace

std::vector<OpDef> optimizer_ops() {
  return {
      {.signature =
           "sgd_step(Tensor[] params, Tensor[] grads, Tensor[] buffers, Operand lr, Operand "
           "momentum=0, Operand dampening=0, Operand weight_decay=0, bool nesterov=False, "
           "bool maximize=False, bool first=False) -> Tensor[]",
       .doc =
           "One step of stochastic gradient descent on all params. With buffers: buffer = momentum "
           "* buffer + (1 - dampening) * grad (just grad when first), and the step follows it "
           "(nesterov: grad + momentum * buffer). Writes params and buffers.",
       .infer = infer_sgd,
       .not_differentiable = kStep,
       .inplace = Inplace::kElementwise,
       .mutates = {0, 2}},
      {.signature = "adam_step(Tensor[] params, Tensor[] grads, Tensor[] exp_avgs, Tensor[] "
                    "exp_avg_sqs, Tensor[] max_exp_avg_sqs, Operand lr, Operand beta1=0.9, Operand "
                    "beta2=0.999, Operand eps=1e-8, Operand weight_decay=0, Operand step=1, bool "
                    "amsgrad=False, bool decoupled=False, bool maximize=False) -> Tensor[]",
       .doc = "One step of Adam (Kingma and Ba, 2015) on all params, AdamW with decoupled; step "
              "counts "
              "from 1. Writes params, exp_avgs, exp_avg_sqs and, with amsgrad, max_exp_avg_sqs.",
       .infer = infer_adam,
       .not_differentiable = kStep,
       .inplace = Inplace::kElementwise,
       .mutates = {0, 2, 3, 4}},
  };
}

}  // namespace teletensor::ops
