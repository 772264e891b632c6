"""Losses as functions. `reduction` is "mean" (default), "sum" or "none"; any other value raises ValueError.
Input and target have equal shapes unless a docstring says otherwise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

from ... import _api as tt
from ..._names import ops as _ops
from ..._tensors.tensor import Tensor
from .layers import pairwise_distance

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "linear_cross_entropy",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]


def _reduce(loss: Tensor, reduction: str) -> Tensor:
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    if reduction == "none":
        return loss
    raise ValueError(f"{reduction} is not a valid value for reduction")


def _legacy(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """The reduction that PyTorch's two older arguments stand for, if one of them is given."""
    if size_average is None and reduce is None:
        if reduction not in ("none", "mean", "sum"):
            raise ValueError(f"{reduction} is not a valid value for reduction")
        return reduction
    warnings.warn(
        "size_average and reduce args will be deprecated, please use reduction instead.",
        stacklevel=3,
    )
    return _legacy_get_string(size_average, reduce, False)


def _legacy_get_string(
    size_average: bool | None, reduce: bool | None, emit_warning: bool = True
) -> str:
    """The reduction of the two older arguments, of which None means True. No warning is given."""
    if reduce is not None and not reduce:
        return "none"
    return "mean" if size_average is None or size_average else "sum"


def _pair(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the two broadcast together, with PyTorch's warning if that changes a shape."""
    if input.shape == target.shape:
        return input, target
    warnings.warn(
        f"Using a target size ({target.shape}) that is different to the input size "
        f"({input.shape}). This will likely lead to incorrect results due to broadcasting. Please "
        f"ensure they have the same size.",
        stacklevel=3,
    )
    first, second = tt.broadcast_tensors(input, target)
    return first, second


def _weighted(loss: Tensor, weight: Tensor, reduction: str, by_weight: bool) -> Tensor:
    """`loss` of each element times its weight; "mean" divides by the sum of the weights if `by_weight`, and
    by the number of elements if not."""
    if tuple(weight.shape) != tuple(loss.shape):
        raise ValueError("Weights and input must have the same size.")
    if reduction == "mean" and by_weight:
        return (loss * weight).sum() / weight.sum()
    return _reduce(loss * weight, reduction)


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """(input - target) ** 2; with weight (of the input's shape) the mean is weighted.

    >>> tt.nn.functional.mse_loss(tt.tensor([1.0, 5.0]), tt.tensor([1.0, 2.0])).item()
    4.5
    """
    reduction = _legacy(size_average, reduce, reduction)
    x, y = _pair(input, target)
    if weight is None:
        return _ops.mse_loss(x, y, reduction)
    return _weighted(_ops.mse_loss(x, y, "none"), weight, reduction, True)


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """|input - target|; with weight (of the input's shape) the mean is weighted."""
    reduction = _legacy(size_average, reduce, reduction)
    x, y = _pair(input, target)
    if x.dtype.is_complex or y.dtype.is_complex:
        off = (x - y).abs()
        return _reduce(off, reduction) if weight is None else _weighted(off, weight, reduction, True)
    if weight is None:
        return _ops.l1_loss(x, y, reduction)
    return _weighted(_ops.l1_loss(x, y, "none"), weight, reduction, True)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:
    """With d = |input - target|: 0.5 d^2 / beta where d < beta, and d - 0.5 beta elsewhere."""
    reduction = _legacy(size_average, reduce, reduction)
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    x, y = _pair(input, target)
    if beta == 0:
        return _ops.l1_loss(x, y, reduction)
    return _ops.smooth_l1_loss(x, y, reduction, beta)


def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """With d = |input - target|: 0.5 d^2 where d <= delta, and delta (d - 0.5 delta) elsewhere; times
    weight (of the input's shape)."""
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    x, y = _pair(input, target)
    if weight is None:
        return _ops.huber_loss(x, y, reduction, delta)
    return _weighted(_ops.huber_loss(x, y, "none", delta), weight, reduction, False)


def _check_batch(input: Tensor, target: Tensor) -> None:
    if input.dim() > 1 and target.dim() > 0 and input.shape[0] != target.shape[0]:
        raise ValueError(
            f"Expected input batch_size ({input.shape[0]}) to match target batch_size "
            f"({target.shape[0]})."
        )


def _check_classes(target: Tensor) -> None:
    """RuntimeError if the classes have neither of the dtypes that PyTorch accepts."""
    if target.dtype not in (tt.int64, tt.uint8) and not target.dtype.is_floating_point:
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {target.dtype}")


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-weight[t] * input[t] for the class t of each sample.

    input [N, C, ...] or [C] contains log-probabilities, target [N, ...] or [] the classes (int64), weight
    [C] the weights of the classes. Samples whose class is ignore_index are ignored; "mean" divides by the
    sum of the weights of the remaining samples.
    """
    reduction = _legacy(size_average, reduce, reduction)
    _check_batch(input, target)
    _check_classes(target)
    return _ops.nll_loss(input, target, weight, ignore_index, reduction)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """nll_loss(log_softmax(input, 1), target): input [N, C, ...] or [C] contains scores.

    target contains classes (int64, shape [N, ...] or []) or probabilities of the classes (a floating-point
    dtype and input's shape). label_smoothing in [0, 1] mixes the target with the uniform distribution
    (Szegedy et al. 2015).
    """
    reduction = _legacy(size_average, reduce, reduction)
    _check_batch(input, target)
    _check_classes(target)
    return _ops.cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-(t log x + (1 - t) log(1 - x)) * weight for probabilities x; the logarithms are clamped to at least
    -100."""
    reduction = _legacy(size_average, reduce, reduction)
    return _ops.binary_cross_entropy(input, target, weight, reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """binary_cross_entropy of sigmoid(input), computed without overflow; the first term is multiplied by
    pos_weight."""
    reduction = _legacy(size_average, reduce, reduction)
    if tuple(input.shape) != tuple(target.shape):
        raise ValueError(
            f"binary_cross_entropy_with_logits: input {list(input.shape)} and target "
            f"{list(target.shape)} must have the same size"
        )
    if input.dtype in (tt.float16, tt.bfloat16):  # so that the result is rounded once
        return _ops.binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction)
    for name, one in (("weight", weight), ("pos_weight", pos_weight)):
        if one is not None and tt.broadcast_shapes(one.shape, input.shape) != tuple(input.shape):
            raise RuntimeError(
                f"binary_cross_entropy_with_logits: {name} of shape {list(one.shape)} does not "
                f"broadcast to the input's shape {list(input.shape)}"
            )
    # The same value from elementwise ops, whose loops are vectorised, which those of the op are not.
    likely = _ops.logsigmoid(input)
    if pos_weight is None:
        loss = (1 - target) * input - likely
    else:
        loss = (1 - target) * input - ((pos_weight - 1) * target + 1) * likely
    return _reduce(loss if weight is None else loss * weight, reduction)


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """target * (log(target) - input), and 0 where target is 0; input contains log-probabilities, and so
    does target with log_target. "batchmean" divides the sum by the size of the first dimension."""
    by_batch = reduction == "batchmean" and size_average is None and reduce is None
    reduction = _legacy(size_average, reduce, "sum" if by_batch else reduction)
    if input._shape != target._shape:
        input, target = tt.broadcast_tensors(input, target)
    if by_batch:
        total = _ops.kl_div(input, target, "sum", log_target)
        return total / (input.shape[0] if input.dim() else 1)
    return _ops.kl_div(input, target, reduction, log_target)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """exp(input) - target * input (log_input), or input - target * log(input + eps); with `full`,
    Stirling's term target log(target) - target + 0.5 log(2 pi target) is added where target > 1."""
    reduction = _legacy(size_average, reduce, reduction)
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
    """0.5 (log(v) + (input - target)^2 / v) with v = max(var, eps); with `full`, 0.5 log(2 pi) is added.
    var broadcasts to input. The gradient with respect to v is passed to var even where it is clamped, so
    that a variance below eps can grow again. A negative variance is a ValueError if var is a number, else a
    RuntimeError when the result is read."""
    if not isinstance(var, Tensor):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = tt.full_like(input, var)
    elif tuple(var.shape) != tuple(input.shape):
        if tuple(var.shape) == tuple(input.shape[:-1]):
            var = var.unsqueeze(-1)
        elif input.dim() != var.dim() or [
            n for m, n in zip(input.shape, var.shape, strict=True) if m != n
        ] != [1]:
            raise ValueError(
                f"gaussian_nll_loss: var of shape {list(var.shape)} is of incorrect size for input "
                f"of shape {list(input.shape)}"
            )
    var = _ops.require(var, ~(var < 0).any(), "var has negative entry/entries")
    v = tt.where(var < eps, var - var.detach() + eps, var)
    loss = (tt.log(v) + (input - target) ** 2 / v) * 0.5
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return _reduce(loss, reduction)


def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """x where the target is 1, and max(0, margin - x) where it is -1."""
    reduction = _legacy(size_average, reduce, reduction)
    zero = tt.zeros_like(input)
    apart = tt.where(target != 1, (margin - input).clamp(min=0), zero)
    together = tt.where(target != -1, input, zero)
    return _reduce(apart + together, reduction)


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, -target * (input1 - input2) + margin) for targets of 1 and -1."""
    reduction = _legacy(size_average, reduce, reduction)
    if not input1.dim() == input2.dim() == target.dim():
        raise RuntimeError(
            f"margin_ranking_loss : All input tensors should have same dimension but got sizes: "
            f"input1: {input1.shape}, input2: {input2.shape}, target: {target.shape} "
        )
    return _reduce((-target * (input1 - input2) + margin).clamp(min=0), reduction)


def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """log(1 + exp(-target * input)) for targets of 1 and -1."""
    reduction = _legacy(size_average, reduce, reduction)
    return _reduce(-_ops.logsigmoid(target * input), reduction)


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """1 - cos(x1, x2) where the target is 1, and max(0, cos(x1, x2) - margin) where it is -1; inputs are
    [N, D] or [D], target is [N] or []."""
    reduction = _legacy(size_average, reduce, reduction)
    if target.dim() > 1:
        raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    if not input1.dim() == input2.dim() == target.dim() + 1:
        raise RuntimeError(
            f"{target.dim()}D target tensor expects {target.dim() + 1}D input tensors, but found "
            f"inputs with sizes {list(input1.shape)} and {list(input2.shape)}."
        )
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
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), where d is the p-norm of the difference
    plus eps along the last dimension; with `swap`, d(anchor, negative) is replaced by the smaller of it and
    d(positive, negative)."""
    reduction = _legacy(size_average, reduce, reduction)
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.dim() == positive.dim() == negative.dim():
        raise RuntimeError(
            f"The anchor, positive, and negative tensors are expected to have the same number of "
            f"dimensions, but got: anchor {anchor.dim()}D, positive {positive.dim()}D, and negative "
            f"{negative.dim()}D inputs"
        )
    near = tt.norm(anchor - positive + eps, p, -1)
    far = tt.norm(anchor - negative + eps, p, -1)
    if swap:
        far = tt.minimum(far, tt.norm(positive - negative + eps, p, -1))
    return _reduce((near - far + margin).clamp(min=0), reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) for any distance d (default:
    pairwise_distance); `swap` is as in triplet_margin_loss."""
    if margin <= 0:
        raise ValueError(f"margin must be greater than 0, got {margin}")
    if not anchor.dim() == positive.dim() == negative.dim():
        raise RuntimeError(
            f"The anchor, positive, and negative tensors are expected to have the same number of "
            f"dimensions, but got: anchor {anchor.dim()}D, positive {positive.dim()}D, and "
            f"negative {negative.dim()}D inputs"
        )
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = tt.minimum(far, distance(positive, negative))
    return _reduce((near - far + margin).clamp(min=0), reduction)


def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes (the last dimension) of -(t log s(x) + (1 - t) log(1 - s(x))) * weight, where s
    is the sigmoid."""
    reduction = _legacy(size_average, reduce, reduction)
    loss = -(target * _ops.logsigmoid(input) + (1 - target) * _ops.logsigmoid(-input))
    if weight is not None:
        loss = loss * weight
    return _reduce(loss.sum(-1) / input.shape[-1], reduction)


def _rows(name: str, input: Tensor, target: Tensor, many: bool) -> tuple[Tensor, Tensor]:
    """Returns input as [N, C], and target as [N, C] (`many`) or [N]."""
    if input.dim() == 0:
        input = input.reshape((1,))
        target = target.reshape((1,) if many else ())
    fits = tuple(target.shape) == (
        tuple(input.shape) if many else tuple(input.shape[:-1])
    ) or (not many and input.dim() == 1 and target.numel() == 1)
    if input.dim() not in (1, 2) or not fits or (input.shape[-1] == 0):
        raise RuntimeError(
            f"{name}: expected input [N, C] or [C] and a target that fits, got input of shape "
            f"{list(input.shape)} and target of shape {list(target.shape)}"
        )
    if target.dtype != tt.int64:
        raise RuntimeError(f"{name}: expected target of int64, got {target.dtype}")
    columns = input.shape[-1]
    x = input.reshape((-1, columns)) if input.dim() == 1 else input
    return x, target.reshape((-1, columns) if many else (-1,)) if input.dim() == 1 else target


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The sum over the classes j other than t of max(0, margin - x[t] + x[j]) ** p * weight[t] / C: input
    is [N, C] or [C], target is [N] or [] (int64)."""
    reduction = _legacy(size_average, reduce, reduction)
    if p not in (1, 2):
        raise ValueError("only p == 1 and p == 2 supported")
    x, places = _rows("multi_margin_loss", input, target, False)
    if weight is not None and tuple(weight.shape) != tuple(x.shape[1:]):
        if weight.dim() != 1:
            raise ValueError("weight must be one-dimensional")
        raise RuntimeError(
            f"multi_margin_loss: inconsistent weight size, expected {list(x.shape[1:])} but "
            f"got {list(weight.shape)}"
        )
    index = places.unsqueeze(1)
    loss = (margin - tt.gather(x, 1, index) + x).clamp(min=0)
    if p == 2:
        loss = loss * loss
    if weight is not None:
        loss = loss * tt.index_select(weight, 0, places).unsqueeze(1)
    others = tt.arange(x.shape[1], device=x.device) != index
    loss = tt.where(others, loss, tt.zeros_like(loss)).sum(1) / x.shape[1]
    return _reduce(loss.reshape(tuple(target.shape)) if input.dim() < 2 else loss, reduction)


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The sum over the classes t of the target, and over the classes j that are not in the target, of
    max(0, 1 - (x[t] - x[j])) / C: input and target are [N, C] or [C]; the list of classes in target (int64)
    ends at the first -1."""
    reduction = _legacy(size_average, reduce, reduction)
    x, places = _rows("multilabel_margin_loss", input, target, True)
    valid = tt.cumsum((places < 0).to(tt.int64), 1) == 0
    safe = tt.where(valid, places, tt.zeros_like(places))
    marks = tt.zeros_like(places).scatter_add(1, safe, valid.to(tt.int64))
    chosen = tt.gather(x, 1, safe)
    loss = (1 - chosen.unsqueeze(2) + x.unsqueeze(1)).clamp(min=0)
    counts = valid.unsqueeze(2) & (marks == 0).unsqueeze(1)
    loss = tt.where(counts, loss, tt.zeros_like(loss)).sum((1, 2)) / x.shape[1]
    return _reduce(loss.reshape(()) if input.dim() < 2 else loss, reduction)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The negative logarithm of the target's probability, which is the sum over all its alignments.

    log_probs [T, N, C] (or [T, C]) contains log-probabilities, targets [N, S] (or all targets concatenated)
    the classes; the lengths [N] (or []) say how many elements of each are valid. Class `blank` separates
    the classes. "mean" first divides each loss by the length of its target. With zero_infinity, a target
    that cannot be aligned has a loss of zero. Source: Graves et al. 2006.
    """
    if log_probs.dim() not in (2, 3):
        raise RuntimeError(
            f"ctc_loss: log_probs needs 2 or 3 dimensions, got shape {list(log_probs.shape)}"
        )
    single = log_probs.dim() == 2
    x = log_probs.unsqueeze(1) if single else log_probs

    def lengths(value: Tensor | Sequence[int]) -> Tensor:
        if not isinstance(value, Tensor):
            value = tt.tensor(value, dtype=tt.int64, device=log_probs.device)
        return value.to(tt.int64).reshape((-1,))

    inputs, sizes = lengths(input_lengths), lengths(target_lengths)
    labels = targets.to(tt.int64)
    if single and labels.dim() == 1:
        labels = labels.unsqueeze(0)
    loss = _ops.ctc_loss(x, labels, inputs, sizes, blank)
    if zero_infinity:
        loss = tt.where(loss == float("inf"), tt.zeros_like(loss), loss)
    if reduction == "mean":
        return (loss / sizes.clamp(min=1).to(loss.dtype)).mean()
    if reduction == "none" and single:
        return loss.squeeze(0)
    return _reduce(loss, reduction)


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: object = None,
) -> Tensor:
    """cross_entropy of linear(input, linear_weight, linear_bias): input is [N, in] or [in], weight [C, in],
    or [C, ..., in] for a loss with more dimensions. `options`, which in PyTorch choose how the work is
    divided, have no effect."""
    if input.dim() not in (1, 2) or linear_weight.dim() < 2 or (
        linear_weight.dim() > 2 and input.dim() == 1
    ):
        raise RuntimeError(
            f"linear_cross_entropy: expected input [N, in] or [in] and weight [C, ..., in], got "
            f"{list(input.shape)} and {list(linear_weight.shape)}"
        )
    own = tuple(linear_weight.shape[:-1])
    if ignore_index is not None and tuple(target.shape) == (*input.shape[:-1], *own):
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    if linear_bias is not None and tuple(linear_bias.shape) != own:
        raise RuntimeError(
            f"expected linear_bias shape {own}, got {tuple(linear_bias.shape)}"
        )
    if len(own) == 1:
        scores = _ops.linear(input, linear_weight, linear_bias)
    else:
        bias = None if linear_bias is None else linear_bias.reshape((-1,))
        flat = linear_weight.reshape((-1, linear_weight.shape[-1]))
        scores = _ops.linear(input, flat, bias).reshape((input.shape[0], *own))
    return cross_entropy(
        scores,
        target,
        weight,
        ignore_index=-100 if ignore_index is None else ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
