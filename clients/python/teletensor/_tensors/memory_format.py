"""Memory formats: the orders of strides, either row-major or with the channels as the innermost
dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _core
from .._core import Tensor, ops

__all__ = [
    "channels_last", "channels_last_3d", "contiguous_format", "in_format", "is_in_format", "jagged",
    "layout", "made_like", "memory_format", "preserve_format", "sparse_bsc", "sparse_bsr", "sparse_coo",
    "sparse_csc", "sparse_csr", "strided",
]


class memory_format:
    """An order of strides: teletensor.contiguous_format, preserve_format, channels_last or
    channels_last_3d."""

    def __init__(self, name: str, order: tuple[int, ...] = ()) -> None:
        self._name, self._order = name, order

    def __repr__(self) -> str:
        return f"{_core.text_prefix()}.{self._name}"

    def __reduce__(self) -> str:
        return self._name


class layout:
    """How elements are stored in memory: teletensor.strided for tensors; sparse_coo, sparse_csr,
    sparse_csc, sparse_bsr or sparse_bsc for sparse ones, and jagged for nested ones."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"{_core.text_prefix()}.{self._name}"

    def __reduce__(self) -> str:
        return self._name


strided = layout("strided")
sparse_coo, sparse_csr, sparse_csc = layout("sparse_coo"), layout("sparse_csr"), layout("sparse_csc")
sparse_bsr, sparse_bsc = layout("sparse_bsr"), layout("sparse_bsc")
jagged = layout("jagged")

contiguous_format = memory_format("contiguous_format")
preserve_format = memory_format("preserve_format")
channels_last = memory_format("channels_last", (0, 2, 3, 1))  # the dims in their order in memory
channels_last_3d = memory_format("channels_last_3d", (0, 2, 3, 4, 1))


def is_in_format(x: Tensor, format: memory_format) -> bool:
    """Returns whether the strides have that order, without gaps. The strides of dims of size 1 do not
    matter."""
    if format is preserve_format:
        raise RuntimeError("preserve memory format is unsupported by the contiguous operator")
    order = format._order or range(x.dim())
    if len(order) != x.dim():
        return False
    strides = x._strides()
    expected = 1
    for d in reversed(order):
        if x._shape[d] != 1 and strides[d] != expected and x.numel():
            return False
        expected *= x._shape[d]
    return True


def in_format(x: Tensor, format: Any, copy: bool = False) -> Tensor:
    """Returns x in that memory format: x itself if it has the format, unless `copy`. None keeps the order
    of the strides."""
    if format is None or format is preserve_format:
        return ops["clone"](x) if copy else x
    if not isinstance(format, memory_format):
        raise TypeError(f"memory_format must be a teletensor.memory_format, not {type(format).__name__}")
    order = format._order
    if order and x.dim() != len(order):
        raise RuntimeError(f"required rank {len(order)} tensor to use {format._name} format")
    if not copy and is_in_format(x, format):
        return x
    if not order:
        return ops["contiguous"](x)
    back = tuple(order.index(d) for d in range(len(order)))
    return ops["permute"](ops["contiguous"](ops["permute"](x, order)), back)


def made_like(x: Tensor, make: Callable[[tuple[int, ...]], Tensor], format: Any = None) -> Tensor:
    """Returns the result of `make` for x's shape, with x's order of strides unless a format is given."""
    if format is not None and format is not preserve_format:
        return in_format(make(x._shape), format)
    strides = x._strides_like()
    if strides is None:
        return make(x._shape)
    memory = make((x.numel(),))
    result: Tensor = ops["detach"](ops["as_strided"](memory, x._shape, strides, 0))
    return result
