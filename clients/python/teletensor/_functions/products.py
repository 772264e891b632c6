"""Products of vectors and matrices with another term added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _core
from .._core import Tensor, ops
from .stores import stored
from .typeinfo import is_inexact, result_type

__all__ = [
    "addbmm", "addbmm_", "addmm", "addmv", "addmv_", "addr", "addr_", "baddbmm", "baddbmm_", "ger", "inner",
    "outer",
]


_HALVES = (_core.float16, _core.bfloat16)


def _sum(input: Tensor, first: Tensor, second: Tensor, beta: Any, alpha: Any,
         product: Callable[[Tensor, Tensor, bool | None], Tensor]) -> Tensor:
    """beta * input + alpha * product(first, second, tf32). For 16-bit floats only the result is rounded:
    the product is computed in float32 (with tf32, which multiplies 16-bit numbers exactly)."""
    if input.dtype not in _HALVES or not input.dtype == first.dtype == second.dtype:
        return _plus(input, product(first, second, None), beta, alpha)
    from ..amp import autocast
    with autocast("cuda" if input.device.type == "cuda" else "cpu", enabled=False):
        wide = [x.to(_core.float32) for x in (input, first, second)]
        total = _plus(wide[0], product(wide[1], wide[2], True), beta, alpha)
    return total.to(input.dtype)


def _plus(input: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    """beta * input + alpha * product; input is ignored if beta is 0. Factors of integers lose their
    fractions."""
    if not is_inexact(product) and not is_inexact(input):
        beta, alpha = (int(v) if isinstance(v, float) else v for v in (beta, alpha))
    scaled = product if alpha == 1 else product * alpha
    if beta == 0:
        shape = scaled._shape
        ops["expand"](input, shape)
        return scaled
    total: Tensor = (input if beta == 1 else input * beta) + scaled
    if total._shape != scaled._shape:
        raise RuntimeError(f"input of shape {list(input._shape)} does not broadcast to "
                           f"{list(scaled._shape)}")
    return total


def _products(x: Tensor, y: Tensor, tf32: bool | None) -> Tensor:
    return ops["bmm"](x, y, tf32)


def _rank(name: str, x: Tensor, rank: int) -> None:
    if x.dim() != rank:
        raise RuntimeError(f"{name}: expected a {rank}-D tensor, got {x.dim()}-D, shape {list(x._shape)}")


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * mat1 @ mat2."""
    if isinstance(beta, complex) or isinstance(alpha, complex) or not is_inexact(input):
        return _plus(input, ops["mm"](mat1, mat2), beta, alpha)
    return ops["addmm"](input, mat1, mat2, beta, alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * the sum of the matrix products of the batch."""
    _rank("addbmm", batch1, 3)
    _rank("addbmm", batch2, 3)
    def summed(x: Tensor, y: Tensor, tf32: bool | None) -> Tensor:
        product = _products(x, y, tf32)
        return ops["sum"](product, 0, False, product.dtype)

    return _sum(input, batch1, batch2, beta, alpha, summed)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * the matrix products of the batch."""
    return _sum(input, batch1, batch2, beta, alpha, _products)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * mat @ vec."""
    return _plus(input, ops["mv"](mat, vec), beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * the outer product of vec1 and vec2. The factors must be bools only for bool
    tensors, whose sum is their logical or, and whole numbers for integers."""
    product = result_type(vec1, vec2)
    dtype = _core.promote(input.dtype, product)
    for name, factor in (("beta", beta), ("alpha", alpha)):
        if isinstance(factor, bool) and dtype != _core.bool:
            raise RuntimeError(f"Boolean {name} only supported for Boolean results.")
        if not (isinstance(factor, int) or dtype.is_floating_point or dtype.is_complex):
            raise RuntimeError(f"For integral input tensors, argument {name} must not be a floating point "
                               "number.")
    if dtype == _core.bool:
        beta, alpha = bool(beta), bool(alpha)
    return _sum(input, vec1, vec2, beta, alpha,
                lambda x, y, _: outer(x, y).to(dtype) if product == _core.bool else outer(x, y))


def addbmm_(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """addbmm in place."""
    return stored(input, addbmm(input, batch1, batch2, beta=beta, alpha=alpha))


def baddbmm_(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """baddbmm in place."""
    return stored(input, baddbmm(input, batch1, batch2, beta=beta, alpha=alpha))


def addmv_(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """addmv in place."""
    return stored(input, addmv(input, mat, vec, beta=beta, alpha=alpha))


def addr_(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """addr in place."""
    return stored(input, addr(input, vec1, vec2, beta=beta, alpha=alpha))


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """The products of each element of one vector with each element of the other."""
    if input.dtype != vec2.dtype or input.dtype == _core.bool:
        _rank("outer", input, 1)
        _rank("outer", vec2, 1)
        return ops["mul"](ops["unsqueeze"](input, 1), vec2)
    return ops["outer"](input, vec2)


def ger(input: Tensor, vec2: Tensor) -> Tensor:
    """As outer(input, vec2)."""
    return outer(input, vec2)


def inner(input: Tensor, other: Tensor) -> Tensor:
    """The sums of products over the last dimension of both tensors."""
    if input.dim() == 0 or other.dim() == 0:
        return ops["mul"](input, other)
    if input._shape[-1] != other._shape[-1]:
        raise RuntimeError("inner() the last dimension must match on both input tensors but got shapes "
                           f"{list(input._shape)} and {list(other._shape)}")
    columns = ops["reshape"](other, (_count(other._shape[:-1]), other._shape[-1]))
    rows = ops["reshape"](input, (_count(input._shape[:-1]), input._shape[-1]))
    product = ops["matmul"](rows, ops["transpose"](columns, 0, 1))
    return ops["reshape"](product, (*input._shape[:-1], *other._shape[:-1]))


def _count(shape: tuple[int, ...]) -> int:
    out = 1
    for size in shape:
        out *= size
    return out
