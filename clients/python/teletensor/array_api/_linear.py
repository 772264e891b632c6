"""The linear algebra functions of the main namespace."""

from __future__ import annotations

from collections.abc import Sequence

from .. import _api as tt
from ._array import Array, operands, unwrap, wrap
from ._manipulation import axis_of

__all__ = ["matmul", "matrix_transpose", "tensordot", "vecdot"]


def matmul(x1: Array, x2: Array, /) -> Array:
    """The matrix product; the axes before the last two are broadcast. A vector is a row as the left operand
    and a column as the right operand."""
    unwrap(x1, "matmul")  # a Python scalar is not accepted as operand
    unwrap(x2, "matmul")
    a, b = operands(x1, x2, "matmul", "numeric")
    if x1.ndim == 0 or x2.ndim == 0:
        raise ValueError("matmul: arrays need at least 1 axis")
    return wrap(tt.matmul(a, b))


def matrix_transpose(x: Array, /) -> Array:
    """The transpose of each matrix."""
    unwrap(x, "matrix_transpose")
    return x.mT


def tensordot(
    x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Array:
    """Products summed over several axes: the last n of x1 with the first n of x2, or two lists of axes."""
    a, b = operands(x1, x2, "tensordot", "numeric")
    if isinstance(axes, int):
        left, right = list(range(x1.ndim - axes, x1.ndim)), list(range(axes))
    else:
        left = [axis_of(i, x1.ndim, "tensordot") for i in axes[0]]
        right = [axis_of(i, x2.ndim, "tensordot") for i in axes[1]]
    if len(left) != len(right) or any(
        x1.shape[i] != x2.shape[j] for i, j in zip(left, right, strict=False)
    ):
        raise ValueError(
            f"tensordot: axes {axes} do not match for shapes {x1.shape} and {x2.shape}"
        )
    return wrap(tt.tensordot(a, b, (left, right)))


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Inner products along an axis; x1 is conjugated."""
    a, b = operands(x1, x2, "vecdot", "numeric")
    low = min(x1.ndim, x2.ndim)
    if not -low <= axis < 0:
        raise ValueError(f"vecdot: axis must be negative and exist in both arrays, it is {axis}")
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError(
            f"vecdot: axis {axis} must have the same size in both arrays, it has {x1.shape[axis]} and "
            f"{x2.shape[axis]}"
        )
    if a.dtype.is_complex:
        a = tt.conj_physical(a)
    product = a.movedim(axis, -1).unsqueeze(-2) @ b.movedim(axis, -1).unsqueeze(-1)
    return wrap(product.squeeze(-1).squeeze(-1))
