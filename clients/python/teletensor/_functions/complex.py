"""Complex numbers: parts, conjugates, and what makes them."""

from __future__ import annotations

from typing import Any

from .._core import Tensor, ops
from .common import function_only

__all__ = [
    "adjoint", "conj", "conj_physical", "imag", "is_complex", "is_conj", "is_neg", "isreal", "real",
    "resolve_conj", "resolve_neg",
]


def scaled(name: str, inplace: bool, input: Any, first: Any, *rest: Any) -> Tensor:
    """add, sub, addcmul or addcdiv with a complex factor, the last argument."""
    *second, factor = rest
    if second:
        first = ops["mul" if name == "addcmul" else "div"](first, *second)
    return ops[("sub" if name == "sub" else "add") + "_" * inplace](input, first * factor)


def is_complex(input: Tensor) -> bool:
    """Is the dtype a complex one?"""
    return input.dtype.is_complex


def isreal(input: Tensor) -> Tensor:
    """Where the imaginary part is 0."""
    if input.dtype.is_complex:
        return ops["eq"](ops["imag"](input), 0)
    return ops["eq"](ops["isnan"](input), ops["isnan"](input))


@function_only
def real(input: Tensor) -> Tensor:
    """The view of the real parts; a real tensor itself."""
    return _part(input, 0) if input.dtype.is_complex else input


@function_only
def imag(input: Tensor) -> Tensor:
    """The view of the imaginary parts. RuntimeError for a real tensor."""
    if not input.dtype.is_complex:
        raise RuntimeError("imag is not implemented for tensors with non-complex dtypes.")
    return _part(input, 1)


def _part(input: Tensor, which: int) -> Tensor:
    return ops["select"](ops["view_as_real"](input), -1, which)


def conj(input: Tensor) -> Tensor:
    """The complex conjugate, computed at once; a real tensor itself."""
    return ops["conj"](input) if input.dtype.is_complex else input


def conj_physical(input: Tensor) -> Tensor:
    """The complex conjugate; a real tensor itself."""
    return conj(input)


def resolve_conj(input: Tensor) -> Tensor:
    """The tensor itself: conjugates are always computed here."""
    return input


def resolve_neg(input: Tensor) -> Tensor:
    """The tensor itself: there is no lazy negation here."""
    return input


def is_conj(input: Tensor) -> bool:
    """Is it a lazy conjugate? Never."""
    return False


def is_neg(input: Tensor) -> bool:
    """Is it a lazy negation? Never."""
    return False


def adjoint(input: Tensor) -> Tensor:
    """The conjugate with the last two dimensions swapped."""
    if input.dim() == 1:
        raise RuntimeError("adjoint: is only supported on matrices or batches of matrices, got 1 dimension")
    return conj(ops["transpose"](input, -2, -1))


def hermitian(input: Tensor) -> Tensor:
    """What the property H is: the adjoint of a matrix."""
    if input.dim() == 0:
        return conj(input)
    if input.dim() != 2:
        raise RuntimeError("tensor.H is only supported on matrices (2-D tensors). "
                           f"Got {input.dim()}-D tensor.")
    return adjoint(input)


def set_real(input: Tensor, value: Any) -> None:
    """input.real = value."""
    ops["copy_"](real(input), value)


def set_imag(input: Tensor, value: Any) -> None:
    """input.imag = value."""
    ops["copy_"](imag(input), value)
