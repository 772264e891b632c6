"""Functions that initialise parameters. Each one overwrites its tensor without recording gradients, and
returns it. Random numbers are drawn on the daemon, in the order of the calls since `manual_seed`."""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import numpy as np

from .. import _api as tt, linalg
from .._tensors.generator import Generator
from .._tensors.tensor import Tensor

__all__ = [
    "calculate_gain",
    "constant",
    "constant_",
    "dirac",
    "dirac_",
    "eye",
    "eye_",
    "kaiming_normal",
    "kaiming_normal_",
    "kaiming_uniform",
    "kaiming_uniform_",
    "normal",
    "normal_",
    "ones_",
    "orthogonal",
    "orthogonal_",
    "sparse",
    "sparse_",
    "trunc_normal_",
    "uniform",
    "uniform_",
    "xavier_normal",
    "xavier_normal_",
    "xavier_uniform",
    "xavier_uniform_",
    "zeros_",
]


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with uniform random numbers in [a, b), drawn by `generator` or by the default
    generator."""
    with tt.no_grad():
        return tensor.uniform_(a, b, generator=generator)


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with normal random numbers with the given mean and standard deviation."""
    with tt.no_grad():
        return tensor.normal_(mean, std, generator=generator)


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fills the tensor with `val`."""
    with tt.no_grad():
        return tensor.fill_(val)


def ones_(tensor: Tensor) -> Tensor:
    """Fills the tensor with 1."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Fills the tensor with 0."""
    return constant_(tensor, 0.0)


def eye_(tensor: Tensor) -> Tensor:
    """Fills a matrix with 1 on the diagonal and 0 elsewhere."""
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    with tt.no_grad():
        rows, columns = tensor.shape
        return tensor.copy_(tt.eye(rows, columns, dtype=tensor.dtype, device=tensor.device))


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Fills the tensor with normal random numbers limited to [a, b], by applying the inverse distribution
    function to uniform numbers.
    """
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. "
            "The distribution of values may be incorrect.",
            stacklevel=2,
        )

    def below(x: float) -> float:
        return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0

    low, high = 2 * below((a - mean) / std) - 1, 2 * below((b - mean) / std) - 1
    with tt.no_grad():
        tensor.uniform_(low, high, generator=generator)
        values = tt.erfinv(tensor) * (std * math.sqrt(2.0)) + mean
        return tensor.copy_(values.clamp(a, b))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The recommended gain for a nonlinearity: 1 for linear and sigmoid, 5/3 for tanh, sqrt(2) for relu,
    sqrt(2 / (1 + slope^2)) for leaky_relu, 3/4 for selu."""
    if nonlinearity in ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
                        "conv_transpose3d", "sigmoid"):
        return 1.0
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity == "selu":
        return 3.0 / 4
    raise ValueError(f"Unsupported nonlinearity {nonlinearity}")


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """The number of inputs and of outputs of one unit: weight is [out, in, kernel...]."""
    shape = tuple(tensor.shape)
    if len(shape) < 2:
        raise ValueError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions"
        )
    receptive = math.prod(shape[2:])
    return shape[1] * receptive, shape[0] * receptive


def xavier_uniform_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with uniform random numbers in +-gain sqrt(6 / (fan_in + fan_out)). Source: Glorot,
    Bengio 2010."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    bound = gain * math.sqrt(2.0 / (fan_in + fan_out)) * math.sqrt(3.0)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(
    tensor: Tensor, gain: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with normal random numbers with standard deviation gain sqrt(2 / (fan_in +
    fan_out))."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / (fan_in + fan_out)), generator)


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    return _calculate_fan_in_and_fan_out(tensor)[mode == "fan_out"]


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    return calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))


def _nothing_to_fill(tensor: Tensor) -> bool:
    if 0 in tuple(tensor.shape):
        warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
        return True
    return False


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fills the tensor with uniform random numbers in +-gain sqrt(3 / fan); `a` is the slope of leaky_relu.
    Source: He et al. 2015."""
    if _nothing_to_fill(tensor):
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fills the tensor with normal random numbers with standard deviation gain / sqrt(fan); `a` is the
    slope of leaky_relu."""
    if _nothing_to_fill(tensor):
        return tensor
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)

def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fills a weight [out, in, kernel...] of 3 to 5 dimensions so that the convolution is the identity on
    as many channels of each group as possible."""
    dims = tensor.dim()
    if dims not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    out, into, *kernel = tensor.shape
    if out % groups != 0:
        raise ValueError("dim 0 must be divisible by groups")
    rows = out // groups
    values = np.zeros((out, into, *kernel))
    for group in range(groups):
        for channel in range(min(rows, into)):
            values[(group * rows + channel, channel, *(size // 2 for size in kernel))] = 1
    with tt.no_grad():
        return tensor.copy_(tt.tensor(values, dtype=tensor.dtype, device=tensor.device))


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """Fills the tensor with a random (semi-)orthogonal matrix times gain; the dimensions after the first
    are flattened. Source: Saxe et al. 2013."""
    if tensor.dim() < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if tensor.numel() == 0:
        return tensor
    rows, columns = tensor.shape[0], tensor.numel() // tensor.shape[0]
    with tt.no_grad():
        # 16-bit numbers have no QR decomposition.
        dtype = tensor.dtype if tensor.dtype.itemsize > 2 else tt.float32
        flat = tt.randn(rows, columns, dtype=dtype, device=tensor.device, generator=generator)
        if rows < columns:
            flat = flat.t()
        q, r = linalg.qr(flat)
        # These signs make the distribution uniform: Mezzadri 2006.
        q = q * tt.diagonal(r).sign()
        if rows < columns:
            q = q.t()
        return tensor.copy_(q.reshape(tuple(tensor.shape)) * gain)


def sparse_(
    tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None
) -> Tensor:
    """Fills a matrix with normal random numbers with standard deviation std, and in each column the
    fraction `sparsity` with zeros. Source: Martens 2010."""
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    with tt.no_grad():
        tensor.normal_(0, std, generator=generator)
        order = tt.rand(rows, columns, device=tensor.device, generator=generator).argsort(0)
        return tensor.copy_(tt.where(order < zeros, 0.0, tensor))


def _deprecated(name: str) -> Any:
    own: Any = globals()[name + "_"]

    @functools.wraps(own)
    def call(*args: Any, **kwargs: Any) -> Tensor:
        text = f"`nn.init.{name}` is now deprecated in favor of `nn.init.{name}_`."
        warnings.warn(text, FutureWarning, 2)
        result: Tensor = own(*args, **kwargs)
        return result

    call.__name__, call.__doc__ = name, f"Deprecated: {name}_."
    return call


constant, dirac, eye, kaiming_normal, kaiming_uniform, normal, orthogonal, sparse, uniform, xavier_normal, (
    xavier_uniform) = map(_deprecated, (
        "constant", "dirac", "eye", "kaiming_normal", "kaiming_uniform", "normal", "orthogonal", "sparse",
        "uniform", "xavier_normal", "xavier_uniform"))

# PyTorch's functions behind those above, which libraries import.
_no_grad_uniform_, _no_grad_normal_, _no_grad_fill_, _no_grad_zero_ = uniform_, normal_, constant_, zeros_
