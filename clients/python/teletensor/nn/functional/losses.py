"""Losses as functions. `reduction` is "mean" (default), "sum" or "none" throughout; anything else is
a ValueError. Shapes of input and target are equal unless a docstring says otherwise."""

from __future__ import annotations

import math

import teletensor as tt

from ... import _ops
from ..._tensor import Tensor

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "margin_ranking_loss",
    "mse_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
]


def _reduce(loss: Tensor, reduction: str) -> Tensor:
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise ValueError(f"{reduction} is not a valid value for reduction")


def _check_shapes(name: str, input: Tensor, target: Tensor) -> None:
    if tuple(input.shape) != tuple(target.shape):
        raise ValueError(
            f"{name}: input and target have different shapes: {list(input.shape)} and "
            f"{list(target.shape)}"
        )


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target) ** 2.

    >>> tt.nn.functional.mse_loss(tt.tensor([1.0, 5.0]), tt.tensor([1.0, 2.0])).item()
    4.5
    """
    return _ops.mse_loss(input, target, reduction)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|input - target|."""
    return _ops.l1_loss(input, target, reduction)


def smooth_l1_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """With d = |input - target|: 0.5 d^2 / beta where d < beta, else d - 0.5 beta."""
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    if beta == 0:
        return l1_loss(input, target, reduction)
    return _ops.smooth_l1_loss(input, target, reduction, beta)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """With d = |input - target|: 0.5 d^2 where d <= delta, else delta (d - 0.5 delta)."""
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    return _ops.huber_loss(input, target, reduction, delta)


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """-weight[t] * input[t] for the class t of each sample.

    input [N, C, ...] or [C] holds log-probabilities, target [N, ...] or [] the classes (int64),
    weight [C]. Samples whose class is ignore_index count nothing; "mean" divides by the sum of the
    weights of the others.
    """
    return _ops.nll_loss(input, target, weight, ignore_index, reduction)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """nll_loss(log_softmax(input, 1), target): input [N, C, ...] or [C] holds scores.

    target holds classes (int64, shape [N, ...] or []) or, with input's own shape and a
    floating-point dtype, probabilities of the classes. label_smoothing in [0, 1] mixes the target
    with the uniform distribution (Szegedy et al. 2015).
    """
    return _ops.cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """-(t log x + (1 - t) log(1 - x)) * weight for probabilities x; the logarithms are limited to
    -100 from below."""
    return _ops.binary_cross_entropy(input, target, weight, reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """binary_cross_entropy of sigmoid(input), computed without overflow; the first term is
    multiplied by pos_weight."""
    return _ops.binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction)


def kl_div(
    input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """target * (log(target) - input), 0 where target is 0; input holds log-probabilities, with
    log_target target does too. "batchmean" divides the sum by the first size."""
    if reduction == "batchmean":
        total = _ops.kl_div(input, target, "sum", log_target)
        return total / (input.shape[0] if input.dim() else 1)
    return _ops.kl_div(input, target, reduction, log_target)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """exp(input) - target * input (log_input), or input - target * log(input + eps); with full,
    Stirling's term target log(target) - target + 0.5 log(2 pi target) is added where target > 1."""
    if log_input:
        loss = tt.exp(input) - target * input
    else:
        loss = input - target * tt.log(input + eps)
    if full:
        large = target > 1
        safe = tt.where(large, target, tt.ones_like(target))
        term = safe * tt.log(safe) - safe + 0.5 * tt.log(2 * math.pi * safe)
        loss = loss + tt.where(large, term, tt.zeros_like(term))
    return _reduce(loss, reduction)


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """0.5 (log(v) + (input - target)^2 / v) with v = max(var, eps), which is constant for the
    gradient where it is limited; with full, 0.5 log(2 pi) is added. var broadcasts to input."""
    if not isinstance(var, Tensor):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = tt.full_like(input, var)
    elif var.dim() == input.dim() - 1 and tuple(var.shape) == tuple(input.shape[:-1]):
        var = var.unsqueeze(-1)
    v = var.clamp(min=eps)
    loss = (tt.log(v) + (input - target) ** 2 / v) * 0.5
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return _reduce(loss, reduction)


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """x where the target is 1, max(0, margin - x) where it is -1."""
    zero = tt.zeros_like(input)
    apart = tt.where(target != 1, (margin - input).clamp(min=0), zero)
    together = tt.where(target != -1, input, zero)
    return _reduce(apart + together, reduction)


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """max(0, -target * (input1 - input2) + margin) for targets of 1 and -1."""
    return _reduce((-target * (input1 - input2) + margin).clamp(min=0), reduction)


def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target * input)) for targets of 1 and -1."""
    _check_shapes("soft_margin_loss", input, target)
    return _reduce(-_ops.logsigmoid(target * input), reduction)


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """1 - cos(x1, x2) where the target is 1, max(0, cos(x1, x2) - margin) where it is -1; inputs
    [N, D] or [D], target [N] or []."""
    eps = 1e-12
    product = (input1 * input2).sum(-1)
    lengths = ((input1 * input1).sum(-1) + eps) * ((input2 * input2).sum(-1) + eps)
    cos = product / lengths.sqrt()
    zero = tt.zeros_like(cos)
    loss = tt.where(target == 1, 1 - cos, zero)
    return _reduce(loss + tt.where(target == -1, (cos - margin).clamp(min=0), zero), reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), d being the p-norm of the
    difference plus eps along the last dimension; with swap the smaller of d(anchor, negative) and
    d(positive, negative) is taken."""
    near = tt.norm(anchor - positive + eps, p, -1)
    far = tt.norm(anchor - negative + eps, p, -1)
    if swap:
        far = tt.minimum(far, tt.norm(positive - negative + eps, p, -1))
    return _reduce((near - far + margin).clamp(min=0), reduction)
