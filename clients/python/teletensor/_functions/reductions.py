"""Reductions whose call forms differ from the catalog's."""

from __future__ import annotations

from typing import Any

from .. import return_types
from .._core import Tensor, ops, uint8

__all__ = ["all", "any", "logsumexp", "max", "median", "min", "norm", "std", "var"]


def logsumexp(input: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over dim without overflow; for complex tensors the largest real part is factored
    out."""
    if not input.dtype.is_complex or not input.numel():
        if input.dtype.is_complex:
            return ops["log"](ops["sum"](input, dim, keepdim))
        return ops["logsumexp"](input, dim, keepdim)
    top = ops["amax"](ops["real"](ops["detach"](input)), dim, True)
    top = ops["masked_fill"](top, ops["isinf"](top), 0)
    total = ops["log"](ops["sum"](ops["exp"](ops["sub"](input, top)), dim, True))
    out = ops["add"](total, top)
    return out if keepdim else ops["reshape"](out, ops["sum"](top, dim)._shape)


def _truth(name: str) -> Any:
    op = ops[name]

    def truth(input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        # an empty dim reduces nothing: the result is the truth value of each element
        if isinstance(dim, (tuple, list)) and not dim:
            found = ops["ne"](input, 0)
            return ops["cast"](found, uint8) if input.dtype == uint8 else found
        return op(input, dim, keepdim)

    truth.__name__ = name
    truth.__doc__ = op.__doc__
    return truth


all, any = _truth("all"), _truth("any")


def max(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest element; along dim: (values, indices); with a tensor as second argument: the elementwise
    maximum."""
    if isinstance(dim, Tensor):
        return ops["maximum"](input, dim)
    return ops["max"](input) if dim is None else return_types.max(*ops["max_dim"](input, dim, keepdim))


def min(input: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest element; along dim: (values, indices); with a tensor as second argument: the elementwise
    minimum."""
    if isinstance(dim, Tensor):
        return ops["minimum"](input, dim)
    return ops["min"](input) if dim is None else return_types.min(*ops["min_dim"](input, dim, keepdim))


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The median (the lower one of two); along dim: (values, indices)."""
    if dim is None:
        return ops["median"](input)
    return return_types.median(*ops["median_dim"](input, dim, keepdim))


def _spread(name: str) -> Any:
    op = ops[name]

    def spread(input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
               correction: Any = None) -> Tensor:
        if isinstance(dim, bool):  # the call was var(input, unbiased)
            dim, unbiased = None, dim
        if correction is None:
            correction = 1 if unbiased is None or unbiased else 0
        return op(input, dim, correction, keepdim)

    spread.__name__ = name
    spread.__doc__ = op.__doc__
    return spread


var, std = _spread("var"), _spread("std")


def norm(input: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The vector norm over dim ("fro" means 2); with "nuc", the sum of the singular values of matrices."""
    if p == "nuc":
        from .. import linalg

        return linalg.matrix_norm(input, "nuc", (-2, -1) if dim is None else dim, keepdim, dtype=dtype)
    return ops["norm"](input, 2.0 if p in ("fro", None) else p, dim, keepdim, dtype)
