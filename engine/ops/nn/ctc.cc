// Connectionist temporal classification (CTC). Kernels: backends/cpu/ctc.cc.
#include "engine/ops/families.h"
#include "engine/ops/functions.h"

namespace teletensor::ops {
namespace {

using core::Dims;
using core::DType;
using core::Status;

// log_probs [T, N, C] is operand `first`; targets, input_lengths and target_lengths follow.
Status check_ctc(InferContext& c, std::size_t first) {
  const Dims &x = c.shape(first), &targets = c.shape(first + 1);
  if (!core::is_floating(c.dtype(first))) {
    return c.unimplemented("expected floating point log_probs, got " +
                           std::string(core::name_of(c.dtype(first))));
  }
  if (x.size() != 3) {
    return c.fail("log_probs must have shape [T, N, C], got " + core::to_string(x));
  }
  for (std::size_t i = first + 1; i < first + 4; ++i) {
    if (c.dtype(i) != DType::kI64) return c.fail("targets and lengths must be int64");
  }
  if (targets.size() != 1 && (targets.size() != 2 || targets[0] != x[1])) {
    return c.fail("targets must have shape [N, S] with N = " + std::to_string(x[1]) +
                  ", or be one-dimensional, got " + core::to_string(targets));
  }
  for (std::size_t i = first + 2; i < first + 4; ++i) {
    if (c.shape(i) != Dims{x[1]}) {
      return c.fail("lengths must have shape " + core::to_string(Dims{x[1]}) + ", got " +
                    core::to_string(c.shape(i)));
    }
  }
  const std::int64_t blank = c.attributes.integer(0);
  if (blank < 0 || blank >= x[2]) {
    return c.fail("blank must be in label range, got " + std::to_string(blank) + " for " +
                  std::to_string(x[2]) + " classes");
  }
  return {};
}

Status ctc_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_ctc(c, 0));
  c.add_result(c.dtype(0), Dims{c.shape(0)[1]});
  return {};
}

Status ctc_backward_infer(InferContext& c) {
  TT_RETURN_IF_ERROR(check_ctc(c, 1));
  if (c.shape(0) != Dims{c.shape(1)[1]} || c.dtype(0) != c.dtype(1)) {
    return c.fail("gradient of shape " + core::to_string(c.shape(0)) + " for log_probs of shape " +
                  core::to_string(c.shape(1)));
  }
  c.add_result(c.dtype(1), c.shape(1));
  return {};
}

void ctc_vjp(VjpContext& c) {
  static const OpRef op("ctc_loss_backward");
  c.give(0, apply(op, {c.gradient(), c.operand(0), c.operand(1), c.operand(2), c.operand(3)},
                  c.attributes()));
}

void ctc_jvp(JvpContext& c) {
  static const OpRef op("ctc_loss_backward");
  const Var dx = c.tangent(0), loss = c.result(0);
  if (!dx.is_tensor() || !loss.is_tensor()) return;
  const Var one =
      full(c.builder(), loss.shape(), core::Number::of_int(1), loss.dtype(), loss.layout().device);
  const Var by_x =
      apply(op, {one, c.operand(0), c.operand(1), c.operand(2), c.operand(3)}, c.attributes());
  c.give(0, sum(by_x * dx, Dims{0, 2}, false));
}

}  // namespace

std::vector<OpDef> ctc_ops() {
  return {
      {.signature = "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, "
                    "Tensor target_lengths, int blank=0) -> Tensor",
       .doc =
           "For each sample of log_probs [T, N, C] minus the log-probability of its target under "
           "all alignments (Graves et al. 2006); targets [N, S], or all after one another.",
       .infer = ctc_infer,
       .vjp = ctc_vjp,
       .saves = {{0}, {1}, {2}, {3}},
       .jvp = ctc_jvp},
      refusing({.signature = "ctc_loss_backward(Tensor gradient, Tensor log_probs, Tensor targets, "
                             "Tensor input_lengths, Tensor target_lengths, int blank) -> Tensor",
                .doc = "The derivative of ctc_loss by log_probs that are a log_softmax: already "
                       "that by its input, which the derivative of log_softmax leaves as it is.",
                .infer = ctc_backward_infer,
                .internal = true}),
  };
}

}  // namespace teletensor::ops
