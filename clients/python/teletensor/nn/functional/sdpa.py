"""Scaled dot-product attention."""

from __future__ import annotations

import math

from ... import _api as tt
from ..._names import ops as _ops
from ..._tensors.tensor import Tensor
from .._sdpa_backends import FUSED, SDPBackend, allowed_backends

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


def _group(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Returns how many heads of the query share one head of key and value."""
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
    return heads // shared


def _split_heads(mask: Tensor, query: Tensor, key: Tensor, group: int) -> Tensor:
    """Returns the mask with a separate dimension for the heads that share a key and value, like the
    scores."""
    if mask.dim() < 3:
        return mask
    if mask.shape[-3] == 1:
        return mask.unsqueeze(-3)
    if mask.shape[-3] != query.shape[-3]:
        raise _misfit(mask, (*query.shape[:-1], key.shape[-2]))
    return mask.unflatten(-3, (-1, group))


def _misfit(mask: Tensor, scores: tuple[int, ...]) -> RuntimeError:
    return RuntimeError(f"{_NAME}: attn_mask {list(mask.shape)} does not broadcast to {list(scores)}")


def _additive(mask: Tensor, scores: tuple[int, ...], dtype: tt.dtype) -> Tensor:
    """Returns the mask as numbers to be added to the scores, with the rank of the scores."""
    if mask.dtype != tt.bool and not mask.dtype.is_floating_point:
        raise RuntimeError(f"{_NAME}: attn_mask must be of bool or of floats, got {mask.dtype}")
    shape = (1,) * (len(scores) - mask.dim()) + tuple(mask.shape)
    if len(shape) != len(scores) or any(m not in (1, n) for m, n in zip(shape, scores, strict=True)):
        raise _misfit(mask, scores)
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
    """softmax(query @ key.T * scale + mask) @ value, computed without storing the matrix of scores.

    query [..., L, E], key [..., S, E] and value [..., S, V] give [..., L, V]; scale defaults to 1/sqrt(E).
    attn_mask broadcasts to [..., L, S]: a bool mask is True where a key is used, and numbers are added to
    the scores; a row without any key gives zeros. is_causal lets position i attend to positions 0..i and
    cannot be combined with a mask. enable_gqa: several heads (dimension -3) of the query share one head of
    key and value. The scores of 16-bit tensors are computed in float32. With dropout the matrix of scores
    is stored. Source: Vaswani et al. 2017; Dao et al. 2022.
    """
    _check(query, key, value)
    if is_causal and attn_mask is not None:
        raise RuntimeError(f"{_NAME}: explicit attn_mask should not be set when is_causal=True")
    place = query.device.type
    if query.dtype == tt.float32 and tt.is_autocast_enabled(place):
        query, key, value = (x.to(tt.get_autocast_dtype(place)) for x in (query, key, value))
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1]) if query.shape[-1] else 1.0
    if not enable_gqa or query.dim() < 3 or query.shape[-3] == key.shape[-3]:
        return _attend(query, key, value, attn_mask, dropout_p, is_causal, scale)
    group = _group(query, key, value)
    if attn_mask is not None:
        attn_mask = _split_heads(attn_mask, query, key, group)
    query = query.unflatten(-3, (-1, group))
    key, value = key.unsqueeze(-3), value.unsqueeze(-3)
    return _attend(query, key, value, attn_mask, dropout_p, is_causal, scale).flatten(-4, -3)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> Tensor:
    """Attention without the matrix of scores, for heads that broadcast together."""
    lead = tt.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    query, key, value = (x.expand(*lead, *x.shape[-2:]) for x in (query, key, value))
    scores = (*lead, query.shape[-2], key.shape[-2])
    dtype = query.dtype
    small = dtype in (tt.float16, tt.bfloat16)
    wide = tt.float32 if small else dtype
    fits = dropout_p == 0.0 and scores[-1] > 0 and wide.is_floating_point
    allowed = allowed_backends()
    if fits and allowed & FUSED:
        mask = None if mask is None else _additive(mask, scores, wide)
        return _ops.attention(query, key, value, mask, is_causal, scale)[0]
    if SDPBackend.MATH not in allowed:
        raise RuntimeError(
            f"{_NAME}: none of the allowed backends {sorted(b.name for b in allowed)} can compute "
            f"this (dtype {dtype}, dropout_p {dropout_p}, {scores[-1]} keys)"
        )
    if is_causal:
        mask = tt.tril(tt.ones(scores[-2:], dtype=tt.bool, device=query.device))
    return _with_scores(query, key, value, mask, dropout_p, scale, scores)


def _with_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    scale: float,
    shape: tuple[int, ...],
) -> Tensor:
    """Attention with the matrix of scores."""
    scores = tt.matmul(query * scale, key.transpose(-2, -1))
    seen = None  # True for rows that attend to at least one key
    if mask is not None:
        mask = _additive(mask, shape, query.dtype)
        seen = (mask > float("-inf")).any(-1, keepdim=True)
        scores = scores + tt.where(seen, mask, 0.0)
    weights = _ops.softmax(scores, -1)
    if dropout_p > 0.0:
        weights = tt.dropout(weights, dropout_p, True)
    result = tt.matmul(weights, value)
    return result if seen is None else tt.where(seen, result, 0.0)
