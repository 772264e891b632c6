"""Functions of complex numbers: parts, conjugates, and complex scale factors."""

from __future__ import annotations

from typing import Any

from .._core import Tensor, ops
from .common import function_only

__all__ = [
    "adjoint", "conj", "conj_physical", "conj_physical_", "imag", "is_complex", "is_conj", "is_neg",
    "isreal", "real", "resolve_conj", "resolve_neg",
]


def scaled(name: str, inplace: bool, input: Any, first: Any, *rest: Any) -> Tensor:
    """add, sub, addcmul or addcdiv with a complex scale factor, which is the last argument."""
    *second, factor = rest
    if second:
        first = ops["mul" if name == "addcmul" else "div"](first, *second)
    return ops[("sub" if name == "sub" else "add") + "_" * inplace](input, first * factor)


def is_complex(input: Tensor) -> bool:
    """Returns whether the dtype is complex."""
    return input.dtype.is_complex


def isreal(input: Tensor) -> Tensor:
    """True where the imaginary part is 0, elementwise."""
    if input.dtype.is_complex:
        return ops["eq"](ops["imag"](input), 0)
    return ops["eq"](ops["isnan"](input), ops["isnan"](input))


@function_only
def real(input: Tensor) -> Tensor:
    """A view of the real parts; a real tensor is returned itself."""
    return _part(input, 0) if input.dtype.is_complex else input


@function_only
def imag(input: Tensor) -> Tensor:
    """A view of the imaginary parts. TypeError for a real tensor."""
    if not input.dtype.is_complex:
        raise TypeError("imag is not implemented for tensors with non-complex dtypes.")
    return _part(input, 1)


def _part(input: Tensor, which: int) -> Tensor:
    return ops["select"](ops["view_as_real"](input), -1, which)


def conj(input: Tensor) -> Tensor:
    """The complex conjugate, computed eagerly; a real tensor is returned itself."""
    return ops["conj"](input) if input.dtype.is_complex else input


def conj_physical(input: Tensor) -> Tensor:
    """The complex conjugate; a real tensor is returned itself."""
    return conj(input)


def conj_physical_(input: Tensor) -> Tensor:
    """conj_physical in place."""
    return ops["copy_"](input, conj(input)) if input.dtype.is_complex else input


def resolve_conj(input: Tensor) -> Tensor:
    """Returns the tensor itself: conjugates are always computed eagerly."""
    return input


def resolve_neg(input: Tensor) -> Tensor:
    """Returns the tensor itself: negations are always computed eagerly."""
    return input


def is_conj(input: Tensor) -> bool:
    """Returns False: teletensor has no lazy conjugates."""
    return False


def is_neg(input: Tensor) -> bool:
    """Returns False: teletensor has no lazy negations."""
    return False


def adjoint(input: Tensor) -> Tensor:
    """The complex conjugate with the last two dimensions swapped."""
    if input.dim() == 1:
        raise RuntimeError("adjoint: is only supported on matrices or batches of matrices, got 1 dimension")
    return conj(ops["transpose"](input, -2, -1))


def hermitian(input: Tensor) -> Tensor:
    """The value of the property H: the adjoint of a matrix."""
    if input.dim() == 0:
        return conj(input)
    if input.dim() != 2:
        raise RuntimeError("tensor.H is only supported on matrices (2-D tensors). "
                           f"Got {input.dim()}-D tensor.")
    return adjoint(input)


def set_real(input: Tensor, value: Any) -> None:
    """Implements the assignment input.real = value."""
    ops["copy_"](real(input), value)


def set_imag(input: Tensor, value: Any) -> None:
    """Implements the assignment input.imag = value."""
    ops["copy_"](imag(input), value)
