"""Tensors made from sizes and numbers."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._convert import resolve_device, tensor
from .._core import Tensor, ops
from .._session import current_session
from .common import function_only, made, options, sizes_of

__all__ = [
    "arange", "empty", "empty_like", "eye", "full", "full_like", "linspace", "one_hot", "ones",
    "ones_like", "scalar_tensor", "zeros", "zeros_like",
]


def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None,
         requires_grad: bool = False) -> Tensor:
    """A tensor of `size` filled with one value; its dtype is the value's unless given."""
    device = resolve_device(current_session(), device)
    if dtype is None and isinstance(fill_value, float):
        dtype = _core.default_dtype()
    return made(ops["full"](fill_value, sizes_of((size,)), dtype, device), requires_grad)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    dtype, device = options(dtype, device)
    return made(ops["full"](0, sizes_of(size), dtype, device), requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    dtype, device = options(dtype, device)
    return made(ops["full"](1, sizes_of(size), dtype, device), requires_grad)


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor whose contents are not specified."""
    dtype, device = options(dtype, device)
    return made(ops["empty"](sizes_of(size), dtype, device), requires_grad)


@function_only
def zeros_like(input: Tensor, *, dtype: Any = None, device: Any = None,
               requires_grad: bool = False) -> Tensor:
    """Zeros of input's shape; dtype and device are input's unless given."""
    return full_like(input, 0, dtype=dtype, device=device, requires_grad=requires_grad)


@function_only
def ones_like(input: Tensor, *, dtype: Any = None, device: Any = None,
              requires_grad: bool = False) -> Tensor:
    """Ones of input's shape; dtype and device are input's unless given."""
    return full_like(input, 1, dtype=dtype, device=device, requires_grad=requires_grad)


@function_only
def full_like(input: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None,
              requires_grad: bool = False) -> Tensor:
    """A tensor of input's shape filled with one value."""
    return made(ops["full"](fill_value, input._shape, dtype or input.dtype, device or input.device),
                 requires_grad)


@function_only
def empty_like(input: Tensor, *, dtype: Any = None, device: Any = None,
               requires_grad: bool = False) -> Tensor:
    """An uninitialised tensor of input's shape."""
    return made(ops["empty"](input._shape, dtype or input.dtype, device or input.device), requires_grad)


def arange(start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None,
           requires_grad: bool = False) -> Tensor:
    """start, start + step, ... before end; `arange(end)` starts at 0."""
    if end is None:
        start, end = 0, start
    device = resolve_device(current_session(), device)
    if dtype is None and any(isinstance(v, float) for v in (start, end, step)):
        dtype = _core.default_dtype()
    return made(ops["arange"](start, end, step, dtype, device), requires_grad)


def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None,
             requires_grad: bool = False) -> Tensor:
    """`steps` evenly spaced numbers from start to end, which may be complex."""
    ends = complex(start), complex(end)
    if dtype is None and any(isinstance(v, complex) for v in (start, end)):
        dtype = _core.default_dtype().to_complex()
    dtype, device = options(dtype, device)
    if not dtype.is_complex:
        return made(ops["linspace"](start, end, steps, dtype, device), requires_grad)
    parts = [ops["linspace"](*each, steps, dtype.to_real(), device)
             for each in zip(*((v.real, v.imag) for v in ends), strict=True)]
    return made(ops["complex"](*parts), requires_grad)


def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None,
        requires_grad: bool = False) -> Tensor:
    """The n input m matrix with ones on the diagonal."""
    dtype, device = options(dtype, device)
    return made(ops["eye"](n, m, dtype, device), requires_grad)


def scalar_tensor(value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A 0-d tensor."""
    return tensor(value, dtype=dtype, device=device)


@function_only
def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """int64 rows with a one at each index of input; -1 reads the largest index first."""
    if num_classes == -1:
        num_classes = int(ops["max"](input).item()) + 1 if input.numel() else 0
    return ops["one_hot"](input, num_classes)
