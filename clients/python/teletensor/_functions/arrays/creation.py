"""Functions that create tensors from sizes and numbers."""

from __future__ import annotations

import math
from typing import Any

from ... import _core
from ..._core import Tensor, ops
from ..._tensors.convert import resolve_device, tensor
from ..._tensors.memory_format import in_format, made_like
from ..._tensors.pending import later, numbers_of
from ..common import batched_as, factory, function_only, made, options, quick, sizes_of
from ..typeinfo import finfo, iinfo

__all__ = [
    "arange", "empty", "empty_like", "empty_permuted", "empty_strided", "eye", "fill_", "full", "full_like",
    "linspace", "logspace", "one_hot", "ones", "ones_like", "scalar_tensor", "tril_indices",
    "triu_indices", "zero_", "zeros", "zeros_like",
]
METHODS = ["new_empty_strided", "new_tensor"]


@quick
@factory
def full(size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None,
         requires_grad: bool = False) -> Tensor:
    """A tensor of shape `size` filled with one value. Its dtype is that of the value unless one is
    given."""
    device = resolve_device(device)
    if dtype is None and isinstance(fill_value, float):
        dtype = _core.default_dtype()
    return made(ops["full"](fill_value, sizes_of((size,)), dtype, device), requires_grad)


@quick
@factory
def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    dtype, device = options(dtype, device)
    return made(ops["full"](0, sizes_of(size), dtype, device), requires_grad)


@quick
@factory
def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    dtype, device = options(dtype, device)
    return made(ops["full"](1, sizes_of(size), dtype, device), requires_grad)


@quick
@factory
def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False,
          memory_format: Any = None) -> Tensor:
    """A tensor of uninitialised memory."""
    dtype, device = options(dtype, device)
    return made(in_format(ops["empty"](sizes_of(size), dtype, device), memory_format), requires_grad)


@function_only
@factory
def zeros_like(input: Tensor, *, dtype: Any = None, device: Any = None,
               requires_grad: bool = False, memory_format: Any = None) -> Tensor:
    """A tensor of zeros with input's shape, and its dtype and device unless they are given."""
    return full_like(input, 0, dtype=dtype, device=device, requires_grad=requires_grad,
                     memory_format=memory_format)


@function_only
@factory
def ones_like(input: Tensor, *, dtype: Any = None, device: Any = None,
              requires_grad: bool = False, memory_format: Any = None) -> Tensor:
    """A tensor of ones with input's shape, and its dtype and device unless they are given."""
    return full_like(input, 1, dtype=dtype, device=device, requires_grad=requires_grad,
                     memory_format=memory_format)


@function_only
@factory
def full_like(input: Tensor, fill_value: Any, *, dtype: Any = None, device: Any = None,
              requires_grad: bool = False, memory_format: Any = None) -> Tensor:
    """A tensor filled with one value, with input's shape, and its dtype and device unless they are
    given."""
    dtype, device = dtype or input.dtype, device or input.device
    new = made_like(input, lambda size: batched_as(input, ops["full"](fill_value, size, dtype, device)),
                    memory_format)
    return made(new, requires_grad)


@function_only
@factory
def empty_like(input: Tensor, *, dtype: Any = None, device: Any = None,
               requires_grad: bool = False, memory_format: Any = None) -> Tensor:
    """An uninitialised tensor of input's shape."""
    dtype, device = dtype or input.dtype, device or input.device
    new = made_like(input, lambda size: batched_as(input, ops["empty"](size, dtype, device)),
                    memory_format)
    return made(new, requires_grad)


def _number(x: Any) -> Any:
    """Returns x as a number; x may be a tensor of one element, whose value is then waited for."""
    if isinstance(x, str):
        raise TypeError("fill value: expected a number or a tensor of one element, not str")
    return x.item() if isinstance(x, Tensor) else x


def _whole(dtype: Any, *numbers: Any) -> tuple[Any, ...]:
    """The numbers; if dtype is an integer dtype, finite numbers lose their fractions."""
    if dtype is None or dtype.is_floating_point or dtype.is_complex or not all(
            math.isfinite(v) for v in numbers if isinstance(v, float)):
        return numbers
    return tuple(int(v) if isinstance(v, float) else v for v in numbers)


def _ends(dtype: Any, steps: int, start: Any, end: Any) -> tuple[Any, ...]:
    """The ends of `steps` numbers as the dtype has them: integers have no fractions, and negative ones wrap
    in unsigned dtypes. RuntimeError for a finite end that is used and out of the dtype's range."""
    if dtype.is_complex or dtype == _core.bool:
        return start, end
    if dtype.is_floating_point:
        low, high = finfo(dtype).min, finfo(dtype).max
    else:
        low, high = iinfo(dtype).min, iinfo(dtype).max
    for v in (start, end)[:max(steps, 0)]:
        least = -high if low == 0 and isinstance(v, int) else low
        if math.isfinite(v) and not least <= (v if dtype.is_floating_point else int(v)) <= high:
            raise RuntimeError(f"value {v} cannot be converted to type {dtype.name} without overflow")
    return tuple(v % (high + 1) if low == 0 and v < 0 else v for v in _whole(dtype, start, end))


@factory
def arange(start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None,
           requires_grad: bool = False) -> Tensor:
    """start, start + step, ... up to but not including end; `arange(end)` starts at 0."""
    if end is None:
        start, end = 0, start
    start, end, step = _number(start), _number(end), _number(step)
    device = resolve_device(device)
    if dtype == _core.bool:
        raise NotImplementedError("arange is not implemented for bool")
    if dtype is None and any(isinstance(v, float) for v in (start, end, step)):
        dtype = _core.default_dtype()
    first, last, by = _whole(dtype, start, end, step)
    if (first, last, by) != (start, end, step) and step:
        count = math.ceil((end - start) / step)  # the number of elements before fractions were dropped
        if not by:
            return made(ops["full"](first, (count,), dtype, device), requires_grad)
        last = first + count * by
    return made(ops["arange"](first, last, by, dtype, device), requires_grad)


@factory
def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None,
             requires_grad: bool = False) -> Tensor:
    """`steps` evenly spaced numbers from start to end, which may be complex."""
    for name, given in (("start", start), ("end", end)):
        if isinstance(given, Tensor) and given.dim():
            raise RuntimeError("linspace only supports 0-dimensional start and end tensors, but got "
                               f"{name} with {given.dim()} dimension(s)")
    start, end = _number(start), _number(end)
    ends = complex(start), complex(end)
    if dtype is None and any(isinstance(v, complex) for v in (start, end)):
        dtype = _core.default_dtype().to_complex()
    dtype, device = options(dtype, device)
    if not dtype.is_complex:
        start, end = _ends(dtype, steps, start, end)
        return made(ops["linspace"](start, end, steps, dtype, device), requires_grad)
    parts = [ops["linspace"](*each, steps, dtype.to_real(), device)
             for each in zip(*((v.real, v.imag) for v in ends), strict=True)]
    return made(ops["complex"](*parts), requires_grad)


@factory
def logspace(start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None,
             device: Any = None, requires_grad: bool = False) -> Tensor:
    """base to the power of `steps` evenly spaced numbers from start to end."""
    dtype, device = options(dtype, device)
    if dtype == _core.bool:
        raise NotImplementedError("logspace is not implemented for bool")
    start, end = _ends(dtype, steps, _number(start), _number(end))
    (base,) = _whole(dtype, _number(base))
    # A negative number has powers with fractions only as a complex number.
    radix = complex(base) if dtype.is_complex and base < 0 else base
    out = ops["pow"](radix, ops["linspace"](start, end, steps, _core.float64, device))
    return made(out if dtype == _core.float64 else ops["cast"](out, dtype), requires_grad)


@factory
def empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None,
                  requires_grad: bool = False) -> Tensor:
    """An uninitialised tensor with the given strides."""
    shape, strides = sizes_of((size,)), sizes_of((stride,))
    if len(shape) != len(strides):
        raise RuntimeError(f"empty_strided: {len(shape)} sizes do not match {len(strides)} strides")
    dtype, device = options(dtype, device)
    room = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    memory = ops["empty"]((room,), dtype, device)
    return made(ops["detach"](ops["as_strided"](memory, shape, strides, 0)), requires_grad)


@factory
def empty_permuted(size: Any, physical_layout: Any, *, dtype: Any = None, device: Any = None,
                   requires_grad: bool = False) -> Tensor:
    """An uninitialised tensor whose dimensions are laid out in memory in the order of physical_layout."""
    shape, order = sizes_of((size,)), sizes_of((physical_layout,))
    if sorted(order) != list(range(len(shape))):
        raise RuntimeError(f"empty_permuted: {list(order)} is no permutation of the dims of {list(shape)}")
    strides, step = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = step
        step *= max(shape[d], 1)
    return empty_strided(shape, strides, dtype=dtype, device=device, requires_grad=requires_grad)


def _triangle(row: int, col: int, mask: str, offset: int, dtype: Any, device: Any) -> Tensor:
    if row < 0 or col < 0:
        raise RuntimeError(f"row and col must be non-negative, got {row} and {col}")
    # The number of elements per row below the diagonal: first, first + 1, ..., clamped to 0 .. col.
    first = offset + (mask == "tril")

    def sum_below(end: int) -> int:
        inside = min(max(end, 0), col)
        return inside * (inside - 1) // 2 + col * max(end - col, 0)
    lower = sum_below(first + row) - sum_below(first)
    count = lower if mask == "tril" else row * col - lower
    whole = ops[mask](full((row, col), True, device=device), offset)
    found = ops["contiguous"](ops["transpose"](ops["nonzero"](whole, count), 0, 1))
    return found if dtype is None or dtype == _core.int64 else ops["cast"](found, dtype)


@factory
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None,
                 device: Any = None) -> Tensor:
    """The row and column indices of the lower triangle of a row x col matrix, as a 2 x n tensor."""
    return _triangle(row, col, "tril", offset, dtype, device)


@factory
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = None,
                 device: Any = None) -> Tensor:
    """The row and column indices of the upper triangle of a row x col matrix, as a 2 x n tensor."""
    return _triangle(row, col, "triu", offset, dtype, device)


@factory
def new_tensor(self: Tensor, data: Any, *, dtype: Any = None, device: Any = None,
               requires_grad: bool = False) -> Tensor:
    """A new tensor with a copy of data; its dtype and device are this tensor's unless they are given."""
    return tensor(data, dtype=dtype or self.dtype, device=device or self.device,
                  requires_grad=requires_grad)


@factory
def new_empty_strided(self: Tensor, size: Any, stride: Any, *, dtype: Any = None, device: Any = None,
                      requires_grad: bool = False) -> Tensor:
    """An uninitialised tensor with the given strides; dtype and device are this tensor's."""
    new = empty_strided(size, stride, dtype=dtype or self.dtype, device=device or self.device)
    return made(batched_as(self, new), requires_grad)


@factory
def eye(n: int, m: int | None = None, *, dtype: Any = None, device: Any = None,
        requires_grad: bool = False) -> Tensor:
    """The n x m matrix with ones on the diagonal; m is n unless given."""
    dtype, device = options(dtype, device)
    return made(ops["eye"](n, m, dtype, device), requires_grad)


@factory
def scalar_tensor(value: Any, *, dtype: Any = None, device: Any = None,
                  requires_grad: bool = False) -> Tensor:
    """A 0-d tensor with this value; its dtype is the default dtype unless one is given."""
    return tensor(value, dtype=dtype or _core.default_dtype(), device=device,
                  requires_grad=requires_grad)


def zero_(input: Tensor) -> Tensor:
    """Fills the tensor with zeros."""
    return ops["fill_"](input, 0)


def fill_(input: Tensor, value: Any) -> Tensor:
    """Fills the tensor with one value."""
    return ops["fill_"](input, value)


@function_only
def one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """An int64 tensor with a new last dimension of size num_classes: one at the class that input names,
    zero elsewhere. If num_classes is -1, it is the largest class plus 1, and reading the shape waits for
    it."""
    if input.dtype.is_floating_point or input.dtype.is_complex:
        raise RuntimeError(f"one_hot: takes integers, got {input.dtype.name}")
    if num_classes == -1 and input.numel() == 0:
        num_classes = 0
    elif num_classes == -1:
        largest = ops["max"](ops["cast"](ops["detach"](input), _core.int64))
        return later(numbers_of(largest), lambda n: ops["one_hot"](input, n[0] + 1), _core.int64,
                     input.dim() + 1, input)
    return ops["one_hot"](input, num_classes)
