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
    """softmax(query @ key.T * scale + mask) @ value.

    query [..., L, E], key [..., S, E], value [..., S, V] give [..., L, V]; scale defaults to
    1/sqrt(E). attn_mask broadcasts to [..., L, S]: True (bool) takes part, numbers are added; a
    row without any True gives zeros. is_causal lets position i see 0..i and excludes a mask.
    enable_gqa: several heads (dimension -3) of the query share one of key and value. Source:
    Vaswani et al. 2017.
    """
    _check(query, key, value)
    length, size = query.shape[-2], key.shape[-2]
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1]) if query.shape[-1] else 1.0
    if is_causal and attn_mask is not None:
        raise RuntimeError(f"{_NAME}: explicit attn_mask should not be set when is_causal=True")
    plain = attn_mask is None and dropout_p == 0.0 and query.dtype in (tt.float32, tt.float64)
    plain = plain and not tt.is_autocast_enabled(query.device.type)  # it lowers the two products
    if plain and size > 0 and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return _ops.attention(query, key, value, is_causal, scale)[0]  # never makes the scores
    if is_causal:
        attn_mask = tt.tril(tt.ones((length, size), dtype=tt.bool, device=query.device))
    grouped = enable_gqa and query.dim() > 2 and query.shape[-3] != key.shape[-3]
    shape = tuple(query.shape)
    if grouped:
        heads, shared = query.shape[-3], key.shape[-3]
        if key.dim() < 3 or value.dim() < 3 or shared == 0 or heads % shared:
            raise RuntimeError(
                f"{_NAME}: number of heads in key and value must divide the number of heads in "
                f"query, got query {list(shape)} and key {list(key.shape)}"
            )
        if value.shape[-3] != shared:
            raise RuntimeError(
                f"{_NAME}: key {list(key.shape)} and value {list(value.shape)} have different "
                f"numbers of heads"
            )
        query = query.reshape((*shape[:-3], shared, heads // shared, *shape[-2:]))
        key, value = key.unsqueeze(-3), value.unsqueeze(-3)
        if attn_mask is not None and attn_mask.dim() > 2:
            own = tuple(attn_mask.shape)
            if own[-3] == 1:
                attn_mask = attn_mask.unsqueeze(-3)
            else:
                attn_mask = attn_mask.reshape((*own[:-3], shared, heads // shared, *own[-2:]))
    scores = tt.matmul(query * scale, key.transpose(-2, -1))
    seen = None  # rows that see anything
    if attn_mask is not None:
        if attn_mask.dtype == tt.bool:
            if not is_causal:
                seen = attn_mask.any(-1, keepdim=True)
                attn_mask = attn_mask | ~seen
            scores = tt.where(attn_mask, scores, float("-inf"))
        else:
            scores = scores + attn_mask
    weights = _ops.softmax(scores, -1)
    if dropout_p > 0.0:
        weights = tt.dropout(weights, dropout_p, True)
    result = tt.matmul(weights, value)
    if seen is not None:
        result = tt.where(seen, result, 0.0)
    return result.reshape((*shape[:-1], result.shape[-1])) if grouped else result
