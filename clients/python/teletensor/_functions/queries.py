"""Questions about tensors."""

from __future__ import annotations

from typing import Any

from .._core import Tensor, ops
from .common import function_only
from .elementwise import isclose

__all__ = ["allclose", "equal", "is_tensor", "numel", "shares_storage"]


def equal(input: Tensor, other: Tensor) -> bool:
    """Same shape and elements? (waits)"""
    return input._shape == other._shape and bool(ops["all"](ops["eq"](input, other)).item())


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08,
             equal_nan: bool = False) -> bool:
    """isclose everywhere? (waits)"""
    return bool(ops["all"](isclose(input, other, rtol, atol, equal_nan)).item())


@function_only
def shares_storage(input: Tensor, other: Tensor) -> bool:
    """Do the two see the same memory?"""
    return input._shares_storage(other)


def is_tensor(input: Any) -> bool:
    """Is input a Tensor?"""
    return isinstance(input, Tensor)


@function_only
def numel(input: Tensor) -> int:
    """The number of elements."""
    return input.numel()
