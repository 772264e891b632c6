"""Normalisations: batch, group, instance, layer, RMS and local response normalisation, and normalisation of
vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ... import _api as tt
from ..._names import ops as _ops
from ..._tensors.tensor import Tensor
from .pooling import avg_pool1d

__all__ = [
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "local_response_norm",
    "normalize",
    "rms_norm",
]

# The distance from 1 to the next larger number of each dtype.
_EPSILON = {"float32": 2.0**-23, "float64": 2.0**-52}


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions, whose sizes are
    normalized_shape (which is also the shape of weight and bias); the variance is the biased one."""
    return _ops.layer_norm(input, weight, bias, normalized_shape, eps)[0]


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean(x ** 2) + eps) * weight over the last dimensions, whose sizes are normalized_shape; eps
    defaults to the machine epsilon of the dtype of the computation, which is float32 for 16-bit input."""
    sizes = tuple(normalized_shape)
    if not sizes or tuple(input.shape[-len(sizes) :]) != sizes:
        raise RuntimeError(
            f"rms_norm: normalized_shape {list(sizes)} does not end the input's shape "
            f"{list(input.shape)}"
        )
    if weight is not None and tuple(weight.shape) != sizes:
        raise RuntimeError(
            f"rms_norm: Expected weight to be of same shape as normalized_shape, but got weight of "
            f"shape {list(weight.shape)} and normalized_shape = {list(sizes)}"
        )
    wide = input.to(tt.float32) if input.dtype in (tt.float16, tt.bfloat16) else input
    if eps is None:
        eps = _EPSILON[str(wide.dtype.to_real()).rpartition(".")[2]]
    dims = tuple(range(-len(sizes), 0))
    scale = tt.rsqrt((wide * wide).mean(dims, keepdim=True) + eps)
    result = (wide * scale).to(input.dtype)
    return result if weight is None else result * weight


def _running(
    name: str, input: Tensor, mean: Tensor | None, var: Tensor | None, needed: bool
) -> None:
    if not needed and (mean is None) != (var is None):
        raise ValueError("running_mean and running_var must either both be None or neither be None")
    for which, stat in (("running_mean", mean), ("running_var", var)):
        if stat is None:
            if needed:
                raise RuntimeError(f"{name}: expected {which} to be defined when not training")
        elif stat.dim() != 1 or stat.shape[0] != input.shape[1]:
            raise RuntimeError(
                f"{name}: {which} of shape {list(stat.shape)} for input of shape "
                f"{list(input.shape)} with {input.shape[1]} channels"
            )


def _check_channels(name: str, input: Tensor) -> None:
    if input.dim() < 2:
        raise RuntimeError(
            f"{name}: expected at least 2 dimensions [N, C, ...], got input of shape "
            f"{list(input.shape)}"
        )


def _by_channel(stat: Tensor, rank: int) -> Tensor:
    return stat.reshape((1, -1, *([1] * (rank - 2))))


def _affine(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Computes x * scale + shift in one pass, in the dtype of x."""
    result = tt.addcmul(shift, x, scale)
    return result if result.dtype == x.dtype else result.to(x.dtype)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias for each channel of x [N, C, ...].

    If `training`, mean and variance are those of the batch (with the biased variance), and the running ones
    are updated in place with the weight `momentum` (the variance with the unbiased variance). If not, the
    running ones are used. Source: Ioffe, Szegedy 2015.
    """
    if input.dim() == 1 and input.numel() == 0:
        return input.clone()
    _check_channels("batch_norm", input)
    _running("batch_norm", input, running_mean, running_var, not training)
    if eps < 0 or (training and eps == 0):
        asked = "positive during training" if training else "non-negative"
        raise ValueError(f"batch_norm eps must be {asked}, but got {eps}")
    rank = input.dim()
    if not training:
        assert running_mean is not None and running_var is not None
        scale = tt.rsqrt(running_var + eps)
        if weight is not None:
            scale = scale * weight
        shift = -running_mean * scale if bias is None else bias - running_mean * scale
        if not input.dtype.is_floating_point:
            raise RuntimeError(f"batch_norm: expected a floating point tensor, got {input.dtype}")
        for name, one in (("weight", weight), ("bias", bias)):
            if one is not None and tuple(one.shape) != (input.shape[1],):
                raise RuntimeError(
                    f"batch_norm: {name} of shape {list(one.shape)} for input of shape "
                    f"{list(input.shape)}"
                )
        return _affine(input, _by_channel(scale, rank), _by_channel(shift, rank))
    count = input.numel() // max(input.shape[1], 1)
    if count == 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size "
            f"{list(input.shape)}"
        )
    result: Tensor
    result, mean, _, variance = _ops.batch_norm(input, weight, bias, eps)
    if count and (running_mean is not None or running_var is not None):
        with tt.no_grad():
            if running_mean is not None:
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            if running_var is not None:
                unbiased = variance * (count / (count - 1))
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return result


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """batch_norm with separate statistics for each sample; the running ones are updated with their mean
    over the batch. Source: Ulyanov et al. 2016."""
    _check_channels("instance_norm", input)
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    _running("instance_norm", input, running_mean, running_var, False)
    batch, channels = input.shape[:2]
    area = math.prod(input.shape[2:])
    if area == 1:
        raise ValueError(
            f"Expected more than 1 spatial element when training, got input size "
            f"{list(input.shape)}"
        )
    each = input.reshape((1, batch * channels, *input.shape[2:]))
    result, mean, _, variance = _ops.batch_norm(each, None, None, eps)
    if running_mean is not None or running_var is not None:
        with tt.no_grad():
            for running, found, factor in (
                (running_mean, mean, 1.0),
                (running_var, variance, area / max(area - 1, 1)),
            ):
                if running is not None:
                    new = found.reshape((batch, channels)).mean(0) * factor
                    running.lerp_(new.to(running.dtype), momentum)
    for name, one in (("weight", weight), ("bias", bias)):
        if one is not None and tuple(one.shape) != (channels,):
            raise RuntimeError(
                f"instance_norm: {name} should contain {channels} elements, got shape "
                f"{list(one.shape)}"
            )
    return _scaled(result.reshape(tuple(input.shape)), weight, bias)


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """x * weight + bias for each channel."""
    rank = x.dim()
    if weight is not None and bias is not None:
        return _affine(x, _by_channel(weight, rank), _by_channel(bias, rank))
    if weight is not None:
        x = (x * _by_channel(weight, rank)).to(x.dtype)
    return x if bias is None else (x + _by_channel(bias, rank)).to(x.dtype)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps), with the mean and variance of a group of adjacent channels of one
    sample, and then weight and bias [C] for each channel. Source: Wu, He 2018."""
    _check_channels("group_norm", input)
    batch, channels = input.shape[:2]
    if channels < 1:
        raise RuntimeError(
            f"group_norm: expected number of channels to be greater than 0, got {channels}"
        )
    if batch > 0 and input.numel() == 0:
        raise RuntimeError(
            f"group_norm: expected HxW to be greater than 0, got input of shape {list(input.shape)}"
        )
    if num_groups < 1 or channels % num_groups:
        raise RuntimeError(
            f"group_norm: expected number of channels in input to be divisible by num_groups, but "
            f"got input of shape {list(input.shape)} and num_groups={num_groups}"
        )
    for name, one in (("weight", weight), ("bias", bias)):
        if one is not None and tuple(one.shape) != (channels,):
            raise RuntimeError(
                f"group_norm: expected {name} to be a vector of size {channels}, but got shape "
                f"{list(one.shape)} for input of shape {list(input.shape)}"
            )
    if input.numel() == 0:
        return _scaled(input.clone(), weight, bias)
    length = input.numel() // (batch * num_groups)
    rows = input.reshape((batch * num_groups, length))
    result = _ops.layer_norm(rows, None, None, (length,), eps)[0]
    return _scaled(result.reshape(tuple(input.shape)), weight, bias)


def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x / (k + alpha * mean of x ** 2 over `size` adjacent channels) ** beta; channels out of range count
    as zeros. Source: Krizhevsky et al. 2012."""
    if input.dim() < 3:
        raise ValueError(
            f"Expected 3D or higher dimensionality                          input "
            f"(got {input.dim()} dimensions)"
        )
    if input.numel() == 0:
        return input
    shape = tuple(input.shape)
    squares = (input * input).reshape((shape[0], shape[1], -1)).transpose(1, 2)
    padded = _ops.constant_pad_nd(squares, 0, (size // 2, (size - 1) // 2))
    mean = avg_pool1d(padded, size, stride=1).transpose(1, 2).reshape(shape)
    return input / (mean * alpha + k) ** beta


def normalize(
    input: Tensor, p: float = 2.0, dim: int | Sequence[int] | None = 1, eps: float = 1e-12,
    out: Tensor | None = None,
) -> Tensor:
    """x / max(p-norm of x along dim, eps); dim may be several dims, or None for all."""
    norm = tt.norm(input, p, dim, keepdim=True)
    result = input / norm.clamp(min=eps)
    return result if out is None else out.copy_(result)
