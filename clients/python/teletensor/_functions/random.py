"""Random tensors."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._convert import resolve_device
from .._core import Tensor, ops
from .._session import current_session
from .common import function_only, made, options, sizes_of

__all__ = ["dropout", "normal", "rand", "rand_like", "randint", "randn", "randn_like", "randperm"]


def _drawn(op: str, size: Any, dtype: Any, device: Any) -> Tensor:
    if not dtype.is_complex:
        return ops[op](size, dtype, device)
    parts = ops[op]((*size, 2), dtype.to_real(), device)
    return ops["view_as_complex"](parts if op == "rand" else ops["mul"](parts, 0.5**0.5))


def rand(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Uniform random numbers in [0, 1); of a complex dtype both parts."""
    dtype, device = options(dtype, device)
    return made(_drawn("rand", sizes_of(size), dtype, device), requires_grad)


def randn(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Standard normal random numbers; of a complex dtype each part has variance 1/2."""
    dtype, device = options(dtype, device)
    return made(_drawn("randn", sizes_of(size), dtype, device), requires_grad)


def randint(low: int, high: Any = None, size: Any = None, *, dtype: Any = None,
            device: Any = None) -> Tensor:
    """Uniform random integers in [low, high); `randint(high, size)` starts at 0."""
    if size is None:
        low, high, size = 0, low, high
    return ops["randint"](low, high, sizes_of((size,)), dtype or _core.int64,
                          resolve_device(current_session(), device))


def randperm(n: int, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A random permutation of 0 ... n-1."""
    return ops["randperm"](n, dtype or _core.int64, resolve_device(current_session(), device))


@function_only
def rand_like(input: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Uniform random numbers of input's shape."""
    return _drawn("rand", input._shape, dtype or input.dtype, device or input.device)


@function_only
def randn_like(input: Tensor, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Standard normal random numbers of input's shape."""
    return _drawn("randn", input._shape, dtype or input.dtype, device or input.device)


def normal(mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, dtype: Any = None,
           device: Any = None) -> Tensor:
    """Normal random numbers; mean and std may be tensors."""
    if isinstance(mean, Tensor) or isinstance(std, Tensor):
        like: Tensor = mean if isinstance(mean, Tensor) else std
        drawn = randn_like(like)
    else:
        drawn = randn(sizes_of((size,)), dtype=dtype, device=device)
    result: Tensor = drawn * std + mean
    return result


@function_only
def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Elements set to zero with probability p, the others divided by 1 - p."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    return ops["dropout"](input, p)[0] if training and p > 0 else input
