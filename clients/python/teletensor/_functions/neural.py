"""Functions of neural networks that PyTorch also has at the top level: those of nn.functional, some with
other argument orders; and cdist."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .._core import Tensor, ops
from .common import function_only

_SAME = (
    "adaptive_avg_pool1d", "avg_pool1d", "bilinear", "celu", "celu_", "channel_shuffle", "conv1d",
    "conv2d", "conv3d", "cosine_similarity", "max_pool1d", "max_pool2d", "max_pool3d",
    "pairwise_distance", "pdist", "pixel_shuffle", "pixel_unshuffle", "rms_norm", "rrelu", "rrelu_",
    "selu_",
)

__all__ = [
    "adaptive_avg_pool1d", "adaptive_max_pool1d", "alpha_dropout", "avg_pool1d", "batch_norm", "bilinear",
    "cdist", "celu", "celu_", "channel_shuffle", "constant_pad_nd", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cosine_similarity", "ctc_loss",
    "embedding",
    "feature_alpha_dropout", "feature_dropout", "group_norm", "instance_norm", "layer_norm",
    "max_pool1d", "max_pool1d_with_indices", "max_pool2d", "max_pool3d", "pairwise_distance", "pdist",
    "pixel_shuffle", "pixel_unshuffle", "rms_norm", "rrelu", "rrelu_", "selu_",
]


def _functional(name: str) -> Callable[..., Any]:
    from ..nn import functional

    found: Callable[..., Any] = getattr(functional, name)
    return found


_copies: dict[str, Callable[..., Any]] = {}


def _same(name: str) -> Callable[..., Any]:
    @function_only
    def call(*args: Any, **kwargs: Any) -> Any:
        return _functional(name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    _copies[name] = call
    return call


def document(functional: ModuleType) -> None:
    """Copies the documentation and the signatures from the functions of nn.functional to their namesakes
    here."""
    for name, call in _copies.items():
        functools.update_wrapper(call, getattr(functional, name), assigned=("__doc__",), updated=())


(adaptive_avg_pool1d, avg_pool1d, bilinear, celu, celu_, channel_shuffle, conv1d, conv2d, conv3d,
 cosine_similarity, max_pool1d, max_pool2d, max_pool3d, pairwise_distance, pdist, pixel_shuffle,
 pixel_unshuffle, rms_norm, rrelu, rrelu_, selu_) = map(_same, _SAME)

conv_transpose1d, conv_transpose2d, conv_transpose3d, max_pool1d_with_indices = map(_same, (
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "max_pool1d_with_indices"))


@function_only
def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Any:
    """As nn.functional.alpha_dropout."""
    return _functional("alpha_dropout")(input, p, training, inplace)


@function_only
def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False,
                          inplace: bool = False) -> Any:
    """As nn.functional.feature_alpha_dropout."""
    return _functional("feature_alpha_dropout")(input, p, training, inplace)


@function_only
def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5, cudnn_enabled: bool = True) -> Any:
    """As nn.functional.group_norm; cudnn_enabled has no effect."""
    return _functional("group_norm")(input, num_groups, weight, bias, eps)


@function_only
def layer_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
               bias: Tensor | None = None, eps: float = 1e-5, cudnn_enable: bool = True) -> Any:
    """As nn.functional.layer_norm; cudnn_enable has no effect."""
    return _functional("layer_norm")(input, normalized_shape, weight, bias, eps)


@function_only
def ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
             reduction: int = 0, zero_infinity: bool = False) -> Any:
    """nn.functional.ctc_loss with the reduction as a number: 0 is none, 1 is mean, 2 is sum."""
    if reduction not in (0, 1, 2):
        raise ValueError(f"ctc_loss: reduction is 0, 1 or 2, not {reduction}")
    name = ("none", "mean", "sum")[reduction]
    return _functional("ctc_loss")(log_probs, targets, input_lengths, target_lengths, blank, name,
                                   zero_infinity)


@function_only
def adaptive_max_pool1d(input: Tensor, output_size: Any) -> Any:
    """The largest elements of windows that are chosen so that the result has output_size elements, and
    their indices."""
    return _functional("adaptive_max_pool1d_with_indices")(input, output_size)


@function_only
def batch_norm(input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
               running_var: Tensor | None, training: bool, momentum: float, eps: float,
               cudnn_enabled: bool = False) -> Any:
    """nn.functional.batch_norm with the arguments in another order."""
    return _functional("batch_norm")(
        input, running_mean, running_var, weight, bias, training, momentum, eps)


@function_only
def instance_norm(input: Tensor, weight: Tensor | None, bias: Tensor | None,
                  running_mean: Tensor | None, running_var: Tensor | None, use_input_stats: bool,
                  momentum: float, eps: float, cudnn_enabled: bool = False) -> Any:
    """nn.functional.instance_norm with the arguments in another order."""
    return _functional("instance_norm")(
        input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


@function_only
def embedding(weight: Tensor, indices: Tensor, padding_idx: int = -1,
              scale_grad_by_freq: bool = False, sparse: bool = False) -> Any:
    """nn.functional.embedding with the weight first; padding_idx -1 means no padding index."""
    return _functional("embedding")(
        indices, weight, None if padding_idx < 0 else padding_idx, None, 2.0, scale_grad_by_freq, sparse)


@function_only
def feature_dropout(input: Tensor, p: float, train: bool) -> Any:
    """Sets whole channels (dimension 1) to zero with probability p and divides the remaining ones by 1 -
    p."""
    if input.dim() < 2:
        raise RuntimeError(
            f"Feature dropout requires at least 2 dimensions in the input, got {list(input.shape)}")
    return _functional("dropout2d")(input, p, train)


@function_only
def constant_pad_nd(input: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """Pads with value: pad[0] elements at the start and pad[1] at the end of the last dimension, pad[2] and
    pad[3] for the second to last, and so on; negative numbers remove elements."""
    return ops["constant_pad_nd"](input, value.item() if isinstance(value, Tensor) else value, list(pad))


@function_only
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0,
          compute_mode: str | None = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """The p-norm distances between rows: x1 of shape [..., P, M] and x2 of shape [..., R, M] give [..., P,
    R].

    Euclidean distances are computed by a matrix product if P or R is above 25; compute_mode
    "use_mm_for_euclid_dist" always and "donot_use_mm_for_euclid_dist" never uses one. Other distances need
    memory for all P * R * M differences.
    """
    for x in (x1, x2):
        if x.dim() < 2:
            raise RuntimeError(f"cdist: expected at least 2 dimensions, got shape {list(x._shape)}")
        if not x.dtype.is_floating_point:
            raise RuntimeError(f"cdist only supports floating-point dtypes, got {x.dtype}")
    if x1._shape[-1] != x2._shape[-1]:
        raise RuntimeError(
            f"cdist: X1 and X2 must have the same number of columns, got {list(x1._shape)} and "
            f"{list(x2._shape)}")
    if p < 0:
        raise RuntimeError(f"cdist only supports non-negative p values, got {p}")
    modes = (None, "use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist",
             "donot_use_mm_for_euclid_dist")
    if compute_mode not in modes:
        raise ValueError(f"{compute_mode} is not a valid value for compute_mode")
    many = x1._shape[-2] > 25 or x2._shape[-2] > 25
    if p == 2 and compute_mode != modes[3] and (many or compute_mode == modes[2]):
        return _euclidean(x1, x2)
    return ops["norm"](x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1, False, None)


def _euclidean(x1: Tensor, x2: Tensor) -> Tensor:
    """sqrt(|a|^2 + |b|^2 - 2ab); where the distance is 0, its gradient is 0."""
    first = (x1 * x1).sum(-1, keepdim=True)
    second = (x2 * x2).sum(-1, keepdim=True).transpose(-2, -1)
    square = (first + second - ops["matmul"](x1, x2.transpose(-2, -1)) * 2).clamp(min=0)
    zero = square == 0
    root: Tensor = ops["sqrt"](ops["where"](zero, 1.0, square))
    return ops["where"](zero, 0.0, root)
