"""What the modules of functions share."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .. import _core
from .._convert import resolve_device
from .._core import Tensor, ops
from .._session import current_session

__all__ = [
    "Function", "Size", "function_only", "is_method", "made", "options", "owned",
    "sizes_of", "wrap_dim",
]
Size = Sequence[int]
Function = TypeVar("Function", bound=Callable[..., Any])


def function_only(function: Function) -> Function:
    """Marks a function of a tensor that is not a method of Tensor."""
    function.__dict__["function_only"] = True
    return function


def is_method(function: Any) -> bool:
    """Does it become a method: is its first parameter a Tensor, and is it not marked?"""
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_argcount) and "function_only" not in vars(function) and (
        function.__annotations__.get(code.co_varnames[0]) in ("Tensor", Tensor))


def owned(x: Tensor) -> Tensor:
    """x, with memory of its own: a row-major copy where it is a view."""
    return ops["contiguous"](x) if x._is_view() else x


def sizes_of(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """f(2, 3), f((2, 3)) and f([2, 3]) alike."""
    if len(sizes) == 1 and not isinstance(sizes[0], int) and hasattr(sizes[0], "__iter__"):
        return tuple(int(s) for s in sizes[0])
    return tuple(int(s) for s in sizes)


def wrap_dim(dim: int, rank: int) -> int:
    """A dim counted from the front; IndexError where there is none. A 0-d tensor has dim 0 and -1."""
    dim, span = operator.index(dim), max(rank, 1)
    if not -span <= dim < span:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-span}, {span - 1}], "
                         f"but got {dim})")
    return dim % span


def options(dtype: Any, device: Any) -> tuple[Any, Any]:
    """dtype and device of a new tensor, with the defaults put in."""
    return (_core.default_dtype() if dtype is None else dtype,
            resolve_device(current_session(), device))


def made(x: Tensor, requires_grad: bool) -> Tensor:
    """x, a new tensor, with its flag set."""
    if requires_grad:
        x.requires_grad = True
    return x
