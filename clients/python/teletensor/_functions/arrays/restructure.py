"""In-place functions that change how a tensor views its memory: t_, unsqueeze_, detach_, resize_, set_,
..."""

from __future__ import annotations

import math
from typing import Any

from ..._core import Tensor, ops
from ..._tensors.memory_format import contiguous_format, in_format
from ..common import Size, sizes_of

__all__ = ["as_strided_", "detach_", "resize_as_"]
METHODS = ["resize_", "set_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"]


def _shows(self: Tensor, view: Tensor) -> Tensor:
    """Makes every reference to `self` a reference to `view`, a tensor to which nothing else refers."""
    if self.requires_grad and self.is_leaf:
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    self._become(view)
    return self


def as_strided_(input: Tensor, size: Size, stride: Size, storage_offset: int | None = None) -> Tensor:
    """as_strided, in place."""
    return _shows(input, input.as_strided(size, stride, storage_offset))


def detach_(input: Tensor) -> Tensor:
    """Detaches the tensor from its graph: it becomes a leaf that does not require grad. RuntimeError for a
    view."""
    if input._base is not None:
        raise RuntimeError("Can't detach views in-place. Use detach() instead.")
    return input.requires_grad_(False) if input.is_leaf else _shows(input, input.detach())


def squeeze_(self: Tensor, dim: Any = None) -> Tensor:
    """squeeze, in place."""
    return _shows(self, self.squeeze() if dim is None else self.squeeze(dim))


def t_(self: Tensor) -> Tensor:
    """t, in place."""
    return _shows(self, self.t())


def transpose_(self: Tensor, dim0: int, dim1: int) -> Tensor:
    """transpose, in place."""
    return _shows(self, self.transpose(dim0, dim1))


swapaxes_ = swapdims_ = transpose_


def unsqueeze_(self: Tensor, dim: int) -> Tensor:
    """unsqueeze, in place."""
    return _shows(self, self.unsqueeze(dim))


def resize_(self: Tensor, *sizes: Any, size: Any = None,
            memory_format: Any = contiguous_format) -> Tensor:
    """Gives the tensor another shape over the same memory; its elements keep their order.

    If the memory is too small, the tensor gets new memory, in which new elements are zero; other tensors
    keep the old memory.
    """
    if self.requires_grad:
        raise RuntimeError("cannot resize variables that require grad")
    size = sizes_of(sizes if size is None else (size,))
    if any(n < 0 for n in size):
        raise RuntimeError(f"resize_: sizes must not be negative, got {list(size)}")
    if math.prod(size) >= 2**63:
        raise RuntimeError(f"resize_: {list(size)} has too many elements")
    if size == self._shape:
        return self
    shown = 1 + sum((n - 1) * s for n, s in zip(self._shape, self._strides(), strict=True))
    shown, wanted = shown if self.numel() else 0, math.prod(size)
    here, start = self.detach(), self.storage_offset()
    if wanted <= shown:
        flat = ops["as_strided"](here, (wanted,), (1,), start)
    else:
        flat = ops["full"](0, (wanted,), self.dtype, self.device)
        flat[:shown] = ops["as_strided"](here, (shown,), (1,), start)
    return _shows(self, in_format(ops["view"](flat, size), memory_format))


def resize_as_(input: Tensor, the_template: Tensor, *, memory_format: Any = contiguous_format) -> Tensor:
    """Resizes the tensor to the shape of another tensor, as resize_ does."""
    return resize_(input, the_template._shape, memory_format=memory_format)


def set_(self: Tensor, source: Tensor | None = None, storage_offset: int = 0, size: Size | None = None,
         stride: Size | None = None) -> Tensor:
    """Makes the tensor view the memory of `source`, a tensor (or the part of it that the strides describe);
    without a source it becomes empty."""
    if source is None:
        return _shows(self, ops["full"](0, (0,), self.dtype, self.device))
    if source.dtype != self.dtype or source.device != self.device:
        raise RuntimeError(f"set_: the source is {source.dtype} on {source.device}, the tensor "
                           f"{self.dtype} on {self.device}")
    view = source.detach()
    if size is not None:
        if stride is None:
            stride = [math.prod(size[d + 1:]) for d in range(len(size))]
        view = ops["as_strided"](view, size, stride, storage_offset)
    return _shows(self, view)
