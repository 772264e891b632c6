"""Functions that answer questions about tensors."""

from __future__ import annotations

import itertools
from typing import Any

from ..._core import Tensor, ops
from ..._tensors.memory_format import is_in_format, memory_format
from ..common import function_only, sizes_of
from ..elementwise import isclose

__all__ = [
    "allclose", "equal", "is_floating_point", "is_nonzero", "is_same_size",
    "is_signed", "is_tensor", "numel", "shares_storage",
]
METHODS = [
    "apply_", "data_ptr", "dim_order", "fill_diagonal_", "get_device", "is_pinned", "is_set_to",
    "is_shared", "map_", "sum_to_size",
]


def equal(input: Tensor, other: Tensor) -> bool:
    """Returns whether both have the same shape and elements; waits for the values."""
    return input._shape == other._shape and bool(ops["all"](ops["eq"](input, other)).item())


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08,
             equal_nan: bool = False) -> bool:
    """Returns whether isclose is true for all elements; waits for the values."""
    return bool(ops["all"](isclose(input, other, rtol, atol, equal_nan)).item())


@function_only
def shares_storage(input: Tensor, other: Tensor) -> bool:
    """Returns whether the two tensors share memory."""
    return input._shares_storage(other)


def is_tensor(input: Any) -> bool:
    """Returns whether input is a Tensor."""
    return isinstance(input, Tensor)


@function_only
def numel(input: Tensor) -> int:
    """Returns the number of elements."""
    return input.numel()


def is_floating_point(input: Tensor) -> bool:
    """Returns whether the dtype is a floating-point dtype."""
    return input.dtype.is_floating_point


def is_signed(input: Tensor) -> bool:
    """Returns whether the dtype can represent negative numbers."""
    return input.dtype.is_signed


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Returns whether the two tensors have the same shape."""
    return input._shape == other._shape


def is_nonzero(input: Tensor) -> bool:
    """Returns whether the tensor's only element is not zero; waits for its value."""
    if input.numel() != 1:
        raise RuntimeError("Boolean value of Tensor with " + (
            "no values" if input.numel() == 0 else "more than one value") + " is ambiguous")
    return bool(input.item())


# ---------------------------------------------------------------- methods only


def dim_order(self: Tensor, *, ambiguity_check: bool | list[memory_format] = False) -> tuple[int, ...]:
    """The dimensions ordered by stride, the largest stride first.

    With `ambiguity_check`, RuntimeError if other orders would be correct too. If it is a list of memory
    formats, that is allowed for a tensor that has exactly one of them.
    """
    formats = ambiguity_check if isinstance(ambiguity_check, list) else []
    if not isinstance(ambiguity_check, (bool, list)) or not all(
            isinstance(f, memory_format) for f in formats):
        raise TypeError("The ambiguity_check argument must be a bool or a list of memory formats.")
    strides = self._strides()
    several = 1 in self._shape or 0 in strides or any(
        a == b for a, b in itertools.pairwise(strides))
    if ambiguity_check is not False and several and sum(is_in_format(self, f) for f in formats) != 1:
        raise RuntimeError("The tensor does not have unique dim order, or cannot map to exact one of "
                           "the given memory formats.")
    return tuple(sorted(range(self.dim()), key=lambda d: -strides[d]))


def get_device(self: Tensor) -> int:
    """Returns the index of the GPU, or -1 for the CPU."""
    return -1 if self.device.type == "cpu" else self.device.index or 0


def is_pinned(self: Tensor, device: Any = None) -> bool:
    """Returns False: the memory belongs to the daemon and is never pinned for the client."""
    return False


def is_shared(self: Tensor) -> bool:
    """Returns False: the memory belongs to the daemon and is never shared among client processes."""
    return False


def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """Returns whether both tensors have the same shape, strides and memory."""
    return (self._shares_storage(tensor) and self._shape == tensor._shape
            and self._strides() == tensor._strides()
            and self.storage_offset() == tensor.storage_offset())


def sum_to_size(self: Tensor, *sizes: Any, size: Any = None) -> Tensor:
    """The sum over the dimensions in which `size`, which broadcasts to the shape, is smaller or missing."""
    target, shape = sizes_of(sizes if size is None else (size,)), self._shape
    lead = len(shape) - len(target)
    if lead < 0 or any(n != m and n != 1 for n, m in zip(target, shape[lead:], strict=True)):
        raise RuntimeError(f"size {list(target)} is not expandable to size {list(shape)}.")
    gone = [d for d in range(len(shape)) if d < lead or (target[d - lead] == 1 and shape[d] != 1)]
    if not target:
        return ops["sum"](self)
    if not gone:
        return self
    return ops["reshape"](ops["sum"](self, gone, True), target)


def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Fills the main diagonal; with wrap, the diagonal of a tall matrix starts again below each square
    block."""
    shape = self._shape
    if len(shape) < 2:
        raise RuntimeError("dimensions must larger than 1")
    if len(shape) > 2 and len(set(shape)) > 1:
        raise RuntimeError("all dimensions of input must be of equal length")
    if self.numel() == 0:
        return self
    strides = self._strides()
    step, size = sum(strides), min(shape)
    ops["fill_"](ops["as_strided"](self, (size,), (step,), self.storage_offset()), fill_value)
    if wrap and len(shape) == 2 and shape[0] > shape[1] + 1:
        start = shape[1] + 1
        for first in range(start, shape[0], start):
            part = ops["slice"](self, 0, first, shape[0] - first, 1)
            ops["fill_"](ops["diagonal"](part), fill_value)
    return self


def _refused(name: str, why: str) -> Any:
    def method(self: Tensor, *args: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{name}() is not supported: {why}")

    method.__name__ = name
    method.__doc__ = f"Not supported: {why}."
    return method


data_ptr = _refused("data_ptr", "the memory is the daemon's")
apply_, map_ = (_refused(name, "Python functions do not run in the daemon") for name in ("apply_", "map_"))
