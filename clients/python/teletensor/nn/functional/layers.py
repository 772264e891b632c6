"""Layers as functions: linear, embedding, normalisation, dropout, attention, distances."""

from __future__ import annotations

import math
from collections.abc import Sequence

import teletensor as tt

from ... import _ops
from ..._tensor import Tensor

__all__ = [
    "cosine_similarity",
    "dropout",
    "embedding",
    "layer_norm",
    "linear",
    "normalize",
    "one_hot",
    "pairwise_distance",
    "rms_norm",
    "scaled_dot_product_attention",
]

# Distance from 1 to the next larger number.
_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias: x [..., in], weight [out, in] (or [in]), bias [out] give [..., out]."""
    return _ops.linear(input, weight, bias)


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Row weight[i] for every index i: input [...] of int32 or int64 and weight [rows, columns]
    give [..., columns]. The row padding_idx gets no gradient. An index outside of the rows is an
    IndexError when a result is read."""
    if padding_idx is None:
        return _ops.embedding(weight, input)
    rows = weight.shape[0]
    if not -rows <= padding_idx < rows:
        raise ValueError(f"embedding: padding_idx {padding_idx} is outside of {rows} rows")
    return _ops.embedding(weight, input, padding_idx % rows)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions, whose sizes are
    normalized_shape (also weight's and bias's shape); the variance is the biased one."""
    return _ops.layer_norm(input, weight, bias, normalized_shape, eps)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean(x ** 2) + eps) * weight over the last dimensions, whose sizes are
    normalized_shape; eps defaults to the dtype's."""
    sizes = tuple(normalized_shape)
    if not sizes or tuple(input.shape[-len(sizes) :]) != sizes:
        raise RuntimeError(
            f"rms_norm: normalized_shape {list(sizes)} does not end the input's shape "
            f"{list(input.shape)}"
        )
    if eps is None:
        eps = _EPSILON[str(input.dtype).rpartition(".")[2]]
    wide = input.to(tt.float32) if input.dtype in (tt.float16, tt.bfloat16) else input
    dims = tuple(range(-len(sizes), 0))
    scale = tt.rsqrt((wide * wide).mean(dims, keepdim=True) + eps)
    result = (wide * scale).to(input.dtype)
    return result if weight is None else result * weight


def dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Each element is zero with probability p, and the others are divided by 1 - p. With
    training=False the input itself is returned. Raises ValueError for p outside of [0, 1]."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training:
        return input
    result = tt.dropout(input, p, True)
    return input.copy_(result) if inplace else result


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """int64 zeros of shape [..., num_classes] with a one at each index; num_classes=-1 reads the
    largest index back first."""
    return tt.one_hot(tensor, num_classes)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x / max(p-norm of x along dim, eps)."""
    norm = tt.norm(input, p, dim, keepdim=True)
    return input / norm.clamp(min=eps)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """sum(x1 * x2) / (max(|x1|, eps) * max(|x2|, eps)) along dim; the shapes broadcast."""
    first = tt.norm(x1, 2, dim, keepdim=True).clamp(min=eps)
    second = tt.norm(x2, 2, dim, keepdim=True).clamp(min=eps)
    return ((x1 / first) * (x2 / second)).sum(dim)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """p-norm of x1 - x2 + eps along the last dimension."""
    return tt.norm(x1 - x2 + eps, p, -1, keepdim=keepdim)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value.

    query [..., L, E], key [..., S, E], value [..., S, V] give [..., L, V]; scale defaults to
    1/sqrt(E). attn_mask broadcasts to [..., L, S]: True (bool) takes part, numbers are added;
    is_causal lets position i see 0..i and excludes a mask. Source: Vaswani et al. 2017.
    """
    length, size = query.shape[-2], key.shape[-2]
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    scores = tt.matmul(query * scale, key.transpose(-2, -1))
    if is_causal:
        if attn_mask is not None:
            raise RuntimeError(
                "scaled_dot_product_attention: attn_mask cannot be given with is_causal"
            )
        ones = tt.ones((length, size), dtype=tt.bool, device=query.device)
        attn_mask = tt.tril(ones)
    if attn_mask is not None:
        if attn_mask.dtype == tt.bool:
            scores = tt.where(attn_mask, scores, float("-inf"))
        else:
            scores = scores + attn_mask
    weights = _ops.softmax(scores, -1)
    if dropout_p > 0.0:
        weights = dropout(weights, dropout_p)
    return tt.matmul(weights, value)
