"""Reductions of nested tensors, softmax, and normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from .._functions.common import wrap_dim
from ..nn import functional
from ._pointwise import function_of
from ._tensor import NestedTensor, unsupported

__all__ = ["FORMS"]


def _over_ragged(name: str, input: NestedTensor) -> Tensor:
    """The reduction [batch, ...] over the ragged dimension."""
    rows, ragged = input._rows(), input._ragged
    if name in ("amax", "amin"):
        if 0 in ragged.lengths:
            raise RuntimeError(
                f"{name}(): a tensor of the batch has no elements along the ragged dimension"
            )
        wide = ragged.numbers().reshape((-1, *(1,) * (rows.dim() - 1))).expand(rows.shape)
        start = tt.zeros((ragged.batch, *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
        found: Tensor = start.scatter_reduce(0, wide, rows, name, include_self=False)
        return found
    if not (rows.is_floating_point() or rows.is_complex()):
        if name == "mean":
            raise RuntimeError(
                f"mean(): the input dtype must be floating point or complex, got {rows.dtype}"
            )
        rows = rows.to(tt.int64)
    start = tt.zeros((ragged.batch, *rows.shape[1:]), dtype=rows.dtype, device=rows.device)
    sums: Tensor = start.index_add(0, ragged.numbers(), rows)
    if name == "sum":
        return sums
    return sums / ragged.sizes().reshape((-1, *(1,) * (rows.dim() - 1))).to(sums.dtype)


def _reduced(name: str) -> Callable[..., Any]:
    def form(input: NestedTensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        source = input if dtype is None else input.to(dtype)
        function = function_of(name)
        if dim is None or (not isinstance(dim, int) and not len(dim)):
            return function(source._data)
        given = [dim] if isinstance(dim, int) else list(dim)
        dims = {wrap_dim(each, source.ndim) for each in given}
        if len(dims) != len(given):
            raise RuntimeError(f"{name}(): a dimension appears multiple times in {given}")
        ragged = source._dim
        if 0 in dims and ragged not in dims:
            raise RuntimeError(
                f"{name}(): reducing across the batch dimension but not the ragged one is not supported "
                "for nested tensors"
            )
        inner = [each - 1 for each in dims if each not in (0, ragged)]
        if 0 in dims:
            total = function(source._data, [*inner, ragged - 1], keepdim)
            return total.unsqueeze(0) if keepdim else total
        if inner:
            values = function(source._data, inner, keepdim)
            moved = ragged if keepdim else ragged - sum(each < ragged - 1 for each in inner)
            source = source._like(values, moved)
        if ragged not in dims:
            return source
        found = _over_ragged(name, source)
        return found.unsqueeze(1).movedim(1, source._dim) if keepdim else found

    return form


def _softmax(name: str) -> Callable[..., Any]:
    def form(
        input: NestedTensor, dim: int, *rest: Any, dtype: Any = None, _stacklevel: int = 3
    ) -> NestedTensor:
        # The function of nn.functional has another argument before dtype.
        wanted = next((each for each in rest if isinstance(each, tt.dtype)), dtype)
        source = input if wanted is None else input.to(wanted)
        at = wrap_dim(dim, source.ndim)
        if at == 0:
            raise RuntimeError(f"{name}(): dimension 0 of a nested tensor is its batch")
        if at != source._dim:
            return source._like(function_of(name)(source._data, at - 1))
        padded = source._ragged.pad(source._rows(), float("-inf"), max(source._ragged.longest, 1))
        # A row of padding only would give NaN, and its gradient too.
        if 0 in source._ragged.lengths:
            empty = (source._ragged.sizes() == 0).reshape((-1, *(1,) * (padded.dim() - 1)))
            padded = padded.masked_fill(empty, 0)
        return source._of_rows(source._ragged.unpad(function_of(name)(padded, 1)))

    return form


def _norm(name: str) -> Callable[..., Any]:
    def form(input: NestedTensor, normalized_shape: Any, *args: Any, **kwargs: Any) -> NestedTensor:
        sizes = [normalized_shape] if isinstance(normalized_shape, int) else list(normalized_shape)
        if input._dim >= input.ndim - len(sizes):
            unsupported(name, "the ragged dimension cannot be normalised")
        return input._like(getattr(functional, name)(input._data, sizes, *args, **kwargs))

    return form


FORMS: dict[str, Callable[..., Any]] = {
    **{name: _reduced(name) for name in ("sum", "mean", "amax", "amin")},
    **{name: _softmax(name) for name in ("softmax", "log_softmax")},
    **{name: _norm(name) for name in ("layer_norm", "rms_norm")},
}
