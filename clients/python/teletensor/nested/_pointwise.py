"""Pointwise functions of nested tensors: they act on the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from ..nn import functional
from ._tensor import OF_VALUES, NestedTensor, of_values

__all__ = ["FORMS", "aligned", "function_of"]

_UNARY = """
    abs acos acosh alpha_dropout asin asinh atan atanh bitwise_not ceil celu clamp clip clone contiguous cos
    cosh deg2rad dropout elu empty_like erf erfc erfinv exp exp2 expm1 fill_ floor frac full_like gelu
    hardsigmoid hardswish hardtanh isfinite isinf isnan leaky_relu log log10 log1p log2 logical_not logit
    logsigmoid mish nan_to_num neg negative ones_like positive rad2deg rand_like randn_like reciprocal relu
    relu6 round rsqrt selu sgn sigmoid sign sin sinh silu softplus softsign sqrt square tan tanh tanhshrink
    trunc zero_ zeros_like bool byte char short int long half bfloat16 float double type_as
"""
_BINARY = """
    add sub subtract mul multiply div divide true_divide floor_divide pow maximum minimum fmax fmin fmod
    remainder atan2 hypot eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or
    bitwise_xor masked_fill where lerp
"""
_IN_PLACE = "add_ sub_ mul_ div_ pow_ relu_ exp_ sqrt_ neg_ clamp_ copy_ masked_fill_"


def function_of(name: str) -> Any:
    """The method, or the function for dense tensors, of that name."""
    return getattr(Tensor, name, None) or getattr(tt, name, None) or getattr(functional, name)


def _unary(name: str) -> Callable[..., Any]:
    def form(input: NestedTensor, *args: Any, **kwargs: Any) -> Any:
        return of_values(function_of(name), input, *args, **kwargs)

    return form


def aligned(name: str, like: NestedTensor, other: Any) -> Any:
    """An operand in the form in which it is broadcast to the values of `like`: a nested tensor of the same
    lengths, a dense tensor whose size at the ragged dimension is 1, or a number."""
    if isinstance(other, NestedTensor):
        if other.ndim != like.ndim or other._dim != like._dim or other._ragged != like._ragged:
            raise RuntimeError(
                f"cannot call binary pointwise function {name} with inputs of shapes {like.shape} and "
                f"{other.shape}"
            )
        return other._data
    if not isinstance(other, Tensor) or other.dim() == 0:
        return other
    batch, dim = like._ragged.batch, like._dim
    shape = (*(1,) * (like.ndim - other.dim()), *other.shape)
    if len(shape) != like.ndim or shape[dim] != 1 or shape[0] not in (1, batch):
        raise RuntimeError(
            f"{name}: a dense tensor of shape {list(other.shape)} does not broadcast to the nested tensor "
            f"of shape {like.shape}"
        )
    if shape[0] == 1:
        return other.reshape(shape[1:])
    rows = other.reshape(shape).squeeze(dim).index_select(0, like._ragged.numbers())
    return rows.movedim(0, dim - 1)


def _binary(name: str) -> Callable[..., Any]:
    def form(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        like = max((each for each in given if isinstance(each, NestedTensor)), key=lambda each: each.ndim)
        parts = [aligned(name, like, each) for each in args]
        named = {key: aligned(name, like, each) for key, each in kwargs.items()}
        return like._like(getattr(tt, name)(*parts, **named))

    return form


def _in_place(name: str) -> Callable[..., Any]:
    def form(input: NestedTensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(input, NestedTensor):
            raise RuntimeError(f"{name}(): a dense tensor cannot take the values of a nested one")
        getattr(input._data, name)(*(aligned(name, input, each) for each in args), **kwargs)
        return input

    return form


OF_VALUES.update(_UNARY.split())
FORMS: dict[str, Callable[..., Any]] = {
    **{name: _unary(name) for name in _UNARY.split()},
    **{name: _binary(name) for name in _BINARY.split()},
    **{name: _in_place(name) for name in _IN_PLACE.split()},
}
