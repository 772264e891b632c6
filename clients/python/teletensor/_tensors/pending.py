"""Tensors whose sizes depend on data: the Tensor object exists at once, and is computed when its shape is
read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _core
from .._core import Tensor, ops

__all__ = ["later", "nonzero_rows", "numbers_of"]


def numbers_of(*numbers: Tensor) -> _core.Counts:
    """The values of int64 tensors of one element, which are requested now and waited for when they are
    needed."""
    first = numbers[0]
    if first.is_meta:
        raise NotImplementedError("the size of the result depends on the values of a tensor of the device "
                                  "meta, which has no data")
    return _core.Counts(first if len(numbers) == 1 else ops["stack"](
        [ops["reshape"](each, ()) for each in numbers], 0))


def later(numbers: _core.Counts, finish: Callable[[list[int]], Tensor], dtype: Any, rank: int,
          *operands: Tensor) -> Tensor:
    """Returns a Tensor of `dtype` with `rank` dimensions that finish(numbers) computes when its shape is
    read.

    `operands` are all tensors that finish reads: before one of them is overwritten, finish is called.
    finish issues ops and reads no values. An error that it raises is raised at every use of the tensor,
    with the source line of this call.
    """
    made: Tensor = _core.pending(numbers, finish, dtype, rank, list(operands))
    return made


def nonzero_rows(x: Tensor, numbers: _core.Counts | None = None) -> Tensor:
    """The coordinates of the elements that are not zero, one row for each. `numbers` is the number of such
    elements, if it is known."""
    return later(numbers or numbers_of(ops["count_nonzero"](x)), lambda n: ops["nonzero"](x, n[0]),
                 _core.int64, 2, x)
