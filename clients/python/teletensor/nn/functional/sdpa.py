"""Scaled dot-product attention."""

from __future__ import annotations

import math

import teletensor as tt

from ... import _ops
from ..._tensor import Tensor

__all__ = ["scaled_dot_product_attention"]

_NAME = "scaled_dot_product_attention"


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(f"{_NAME}: needs at least 2 dimensions, got {shapes}")
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            f"{_NAME}: expected query, key, and value to have the same dtype, but got "
            f"{query.dtype}, {key.dtype} and {value.dtype}"
        )
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise RuntimeError(f"{_NAME}: sizes do not fit: {shapes}")


def _grouped(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """key and value with as many heads as the query, each as often as its group is large."""
    heads, shared = query.shape[-3], key.shape[-3] if key.dim() > 2 else 0
    if value.dim() < 3 or shared == 0 or heads % shared:
        raise RuntimeError(
            f"{_NAME}: number of heads in key and value must divide the number of heads in "
            f"query, got query {list(query.shape)} and key {list(key.shape)}"
        )
    if value.shape[-3] != shared:
        raise RuntimeError(
            f"{_NAME}: key {list(key.shape)} and value {list(value.shape)} have different "
            f"numbers of heads"
        )
    group = heads // shared

    def repeated(x: Tensor) -> Tensor:
        shape = x.shape
        return x.unsqueeze(-3).expand(*shape[:-2], group, *shape[-2:]).flatten(-4, -3)

    return repeated(key), repeated(value)


def _additive(mask: Tensor, scores: tuple[int, ...], dtype: tt.dtype) -> Tensor:
    """The mask as numbers that are added to the scores, of their rank."""
    if mask.dtype != tt.bool and not mask.dtype.is_floating_point:
        raise RuntimeError(f"{_NAME}: attn_mask must be of bool or of floats, got {mask.dtype}")
    shape = (1,) * (len(scores) - mask.dim()) + tuple(mask.shape)
    if len(shape) != len(scores) or any(m not in (1, n) for m, n in zip(shape, scores, strict=True)):
        raise RuntimeError(
            f"{_NAME}: attn_mask {list(mask.shape)} does not broadcast to {list(scores)}"
        )
    if mask.dtype == tt.bool:
        zero = tt.zeros((), dtype=dtype, device=mask.device)
        mask = tt.where(mask, zero, float("-inf"))
    return mask.to(dtype).reshape(shape)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value, without the whole matrix of scores.

    query [..., L, E], key [..., S, E], value [..., S, V] give [..., L, V]; scale defaults to
    1/sqrt(E). attn_mask broadcasts to [..., L, S]: True (bool) takes part, numbers are added; a
    row that sees nothing gives zeros. is_causal lets position i see 0..i and excludes a mask.
    enable_gqa: several heads (dimension -3) of the query share one of key and value. Scores of
    16-bit tensors are float32 on a CPU. With dropout the matrix is made. Source: Vaswani et al.
    2017; Dao et al. 2022.
    """
    _check(query, key, value)
    if is_causal and attn_mask is not None:
        raise RuntimeError(f"{_NAME}: explicit attn_mask should not be set when is_causal=True")
    place = query.device.type
    if query.dtype == tt.float32 and tt.is_autocast_enabled(place):
        query, key, value = (x.to(tt.get_autocast_dtype(place)) for x in (query, key, value))
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1]) if query.shape[-1] else 1.0
    if enable_gqa and query.dim() > 2 and query.shape[-3] != key.shape[-3]:
        key, value = _grouped(query, key, value)
    lead = tt.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    query, key, value = (x.expand(*lead, *x.shape[-2:]) for x in (query, key, value))
    scores = (*lead, query.shape[-2], key.shape[-2])
    dtype = query.dtype
    small = dtype in (tt.float16, tt.bfloat16)
    wide = tt.float32 if small else dtype
    if dropout_p == 0.0 and scores[-1] > 0 and wide.is_floating_point and not (small and place == "cuda"):
        mask = None if attn_mask is None else _additive(attn_mask, scores, wide)
        parts = (x.to(wide) for x in (query, key, value))
        return _ops.attention(*parts, mask, is_causal, scale)[0].to(dtype)
    if is_causal:
        attn_mask = tt.tril(tt.ones(scores[-2:], dtype=tt.bool, device=query.device))
    return _with_scores(query, key, value, attn_mask, dropout_p, scale, scores)


def _with_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    scale: float,
    shape: tuple[int, ...],
) -> Tensor:
    """The same with the matrix of scores."""
    scores = tt.matmul(query * scale, key.transpose(-2, -1))
    seen = None  # rows that see anything
    if mask is not None:
        mask = _additive(mask, shape, query.dtype)
        seen = (mask > float("-inf")).any(-1, keepdim=True)
        scores = scores + tt.where(seen, mask, 0.0)
    weights = _ops.softmax(scores, -1)
    if dropout_p > 0.0:
        weights = tt.dropout(weights, dropout_p, True)
    result = tt.matmul(weights, value)
    return result if seen is None else tt.where(seen, result, 0.0)
