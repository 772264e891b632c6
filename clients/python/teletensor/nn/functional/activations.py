"""Activation functions. Each takes a floating-point tensor of any shape and returns one of the same
shape and dtype; with inplace=True the input is overwritten and returned."""

from __future__ import annotations

import warnings
from typing import Any

from ... import _api as tt
from ..._names import ops as _ops
from ..._tensors.tensor import Tensor

__all__ = [
    "celu",
    "celu_",
    "elu",
    "elu_",
    "gelu",
    "glu",
    "gumbel_softmax",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hardtanh_",
    "leaky_relu",
    "leaky_relu_",
    "log_softmax",
    "logsigmoid",
    "mish",
    "prelu",
    "relu",
    "relu6",
    "relu_",
    "rrelu",
    "rrelu_",
    "selu",
    "selu_",
    "sigmoid",
    "silu",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "tanh",
    "tanhshrink",
    "threshold",
    "threshold_",
]


def _into(input: Tensor, result: Tensor, inplace: bool) -> Tensor:
    return input.copy_(result) if inplace else result


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0)."""
    return input.relu_() if inplace else _ops.relu(input)


def relu_(input: Tensor) -> Tensor:
    """max(x, 0), in place."""
    return input.relu_()


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x * Phi(x), where Phi is the normal distribution function; approximate="tanh" computes 0.5 x (1 +
    tanh(sqrt(2/pi) (x + 0.044715 x^3))). Source: Hendrycks, Gimpel 2016."""
    return _ops.gelu(input, approximate)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return _ops.sigmoid(input)


def tanh(input: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return _ops.tanh(input)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x * sigmoid(x)."""
    return _into(input, _ops.silu(input), inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where x > 0, and negative_slope * x elsewhere."""
    return _into(input, _ops.leaky_relu(input, negative_slope), inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where x > 0, and alpha * (exp(x) - 1) elsewhere."""
    return _into(input, _ops.elu(input, alpha), inplace)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    if alpha == 0:
        raise ZeroDivisionError("celu: alpha cannot be 0")
    negative = tt.expm1(tt.where(input > 0, 0.0, input) / alpha) * alpha
    return _into(input, tt.where(input > 0, input, negative), inplace)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """scale * elu(x, alpha) with the constants of Klambauer et al. 2017."""
    return _into(input, _ops.selu(input), inplace)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta, and x where beta * x > threshold."""
    return _ops.softplus(input, beta, threshold)


def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(x)), computed without overflow."""
    return _ops.logsigmoid(input)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x, 0), 6)."""
    return _into(input, _ops.relu6(input), inplace)


def hardtanh(
    input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """x clamped to [min_val, max_val]."""
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    return _into(input, _ops.hardtanh(input, min_val, max_val), inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(x + 3, 0), 6) / 6."""
    return _into(input, _ops.hardsigmoid(input), inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * min(max(x + 3, 0), 6) / 6."""
    return _into(input, _ops.hardswish(input), inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x * tanh(softplus(x)). Source: Misra 2019."""
    return _into(input, _ops.mish(input), inplace)


def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|)."""
    return input / (input.abs() + 1)


def tanhshrink(input: Tensor) -> Tensor:
    """x - tanh(x)."""
    return input - _ops.tanh(input)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd, and 0 where |x| <= lambd."""
    if lambd < 0:
        raise RuntimeError(f"softshrink: lambda must be at least 0, but found {lambd}")
    result: Tensor = tt.where(input.abs() > lambd, input - tt.sign(input) * lambd, input - input)
    return result


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x where |x| > lambd, and 0 elsewhere."""
    return _ops.where(input.abs() <= lambd, tt.zeros_like(input), input)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """value where x <= threshold, and x elsewhere."""
    return _into(input, tt.where(input <= threshold, tt.full_like(input, value), input), inplace)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x where x > 0, and weight * x elsewhere; weight has one element, or one for each index of dimension
    1."""
    if weight.dim() > 1:
        raise RuntimeError(
            f"prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = {weight.dim()}"
        )
    if weight.numel() != 1:
        channels = input.shape[1] if input.dim() > 1 else 1
        if weight.dim() != 1 or weight.numel() != channels:
            raise RuntimeError(
                f"prelu: weight has shape {list(weight.shape)}, but dimension 1 of the input of "
                f"shape {list(input.shape)} has {channels} entries"
            )
        weight = weight.reshape((-1, *([1] * (input.dim() - 2))))
    else:
        weight = weight.reshape(())
    return _ops.where(input > 0, input, input * weight)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b), where a and b are the halves of the input along `dim`."""
    size = input.shape[dim]
    if size % 2:
        raise RuntimeError(f"glu: dimension {dim} has odd size {size}")
    first, second = input.chunk(2, dim)
    return first * _ops.sigmoid(second)


def _implicit_dim(name: str, rank: int) -> int:
    warnings.warn(
        f"{name}: without dim the choice depends on the rank; give dim", UserWarning, stacklevel=3
    )
    return 0 if rank in (0, 1, 3) else 1


def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`; the input is first cast to dtype if one is given."""
    if dim is None:
        dim = _implicit_dim("softmax", input.dim())
    return _ops.softmax(input, dim, dtype)


def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """log(softmax(x)) along `dim`, computed as x - max - log(sum(exp(x - max)))."""
    if dim is None:
        dim = _implicit_dim("log_softmax", input.dim())
    return _ops.log_softmax(input, dim, dtype)


def softmin(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None
) -> Tensor:
    """softmax(-x) along `dim`."""
    if dim is None:
        dim = _implicit_dim("softmin", input.dim())
    return _ops.softmax(-input, dim, dtype)


# ---------------------------------------------------------------- random


def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
    *,
    generator: Any = None,
) -> Tensor:
    """x where x > 0, and x * a elsewhere. In training a is random for each element, uniform in [lower,
    upper); in evaluation it is the mean of both. Source: Xu et al. 2015."""
    if lower > upper:
        raise RuntimeError(
            f"rrelu: lower bound should be less than or equal to the upper bound, got {lower} and "
            f"{upper}"
        )
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    noise = tt.rand(tuple(input.shape), dtype=input.dtype, device=input.device, generator=generator)
    slope = noise * (upper - lower) + lower
    return _into(input, tt.where(input > 0, input, input * slope), inplace)


def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """A sample of the Gumbel-softmax distribution along `dim`. With `hard` it is a one-hot vector that has
    the gradient of the soft sample. Source: Jang, Gu, Poole 2017."""
    uniform = tt.rand(tuple(logits.shape), dtype=logits.dtype, device=logits.device)
    # The logarithms are of numbers in (0, 1]: the results are finite except for one in 2^24.
    gumbels = -tt.log(-tt.log1p(-uniform))
    soft = _ops.softmax((logits + gumbels) / tau, dim)
    if not hard:
        return soft
    index = soft.detach().max(dim, keepdim=True)[1]
    ones = tt.zeros_like(logits).scatter(dim, index, 1.0)
    return ones - soft.detach() + soft


# ---------------------------------------------------------------- in place


def celu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """celu, in place."""
    return celu(input, alpha, True)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """elu, in place."""
    return elu(input, alpha, True)


def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """hardtanh, in place."""
    return hardtanh(input, min_val, max_val, True)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """leaky_relu, in place."""
    return leaky_relu(input, negative_slope, True)


def rrelu_(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    *,
    generator: Any = None,
) -> Tensor:
    """rrelu, in place."""
    return rrelu(input, lower, upper, training, True, generator=generator)


def selu_(input: Tensor) -> Tensor:
    """selu, in place."""
    return selu(input, True)


def threshold_(input: Tensor, threshold: float, value: float) -> Tensor:
    """threshold, in place."""
    return globals()["threshold"](input, threshold, value, True)  # type: ignore[no-any-return]
