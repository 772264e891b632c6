"""Multi-head attention as a function."""

from __future__ import annotations

import math

from ... import _api as tt
from ..._names import ops as _ops
from ..._tensors.tensor import Tensor

__all__ = ["multi_head_attention_forward"]


def _additive(mask: Tensor | None, name: str, dtype: tt.dtype) -> Tensor | None:
    """Returns the mask as numbers that are added to the scores: a bool mask becomes -inf where it is True
    (excluded)."""
    if mask is None:
        return None
    if mask.dtype == tt.bool:
        zeros = tt.zeros(tuple(mask.shape), dtype=dtype, device=mask.device)
        return zeros.masked_fill(mask, float("-inf"))
    if not mask.is_floating_point():
        raise AssertionError(f"only bool and floating types of {name} are supported")
    return mask


def _check_shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
) -> bool:
    """Returns whether the inputs have a batch dimension. Raises AssertionError for ranks that do not fit
    together."""
    if query.dim() not in (2, 3):
        raise AssertionError(
            f"query should be unbatched 2D or batched 3D tensor but received {query.dim()}-D "
            "query tensor"
        )
    rank = query.dim()
    if key.dim() != rank or value.dim() != rank:
        raise AssertionError(
            f"For {rank}-D query, expected key and value to be {rank}-D but found {key.dim()}-D "
            f"and {value.dim()}-D tensors respectively"
        )
    if key_padding_mask is not None and key_padding_mask.dim() != rank - 1:
        raise AssertionError(
            f"For {rank}-D query, expected key_padding_mask to be None or {rank - 1}-D but found "
            f"{key_padding_mask.dim()}-D"
        )
    if attn_mask is not None and attn_mask.dim() not in (2, 3):
        raise AssertionError(
            f"expected attn_mask to be None, 2-D or 3-D but found {attn_mask.dim()}-D"
        )
    return rank == 3


def _project(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor | None,
    weights: tuple[Tensor | None, Tensor | None, Tensor | None],
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns query, key and value times their weights; computes one product if they are the same
    tensor."""
    size = query.shape[-1]
    if weight is not None and query is key and key is value:
        q, k, v = _ops.linear(query, weight, bias).chunk(3, -1)
        return q, k, v
    biases = (None, None, None) if bias is None else bias.chunk(3)
    if weight is not None:
        if key is value:
            q = _ops.linear(query, weight[:size], biases[0])
            both = None if bias is None else bias[size:]
            k, v = _ops.linear(key, weight[size:], both).chunk(2, -1)
            return q, k, v
        weights = weight.chunk(3)  # type: ignore[assignment]
    q, k, v = (
        _ops.linear(input, each, b)
        for input, each, b in zip((query, key, value), weights, biases, strict=True)
    )
    return q, k, v


def _one_more(mask: Tensor | None) -> Tensor | None:
    """Returns the mask extended by one more key that is not masked."""
    if mask is None:
        return None
    zeros = tt.zeros((*mask.shape[:-1], 1), dtype=mask.dtype, device=mask.device)
    return tt.cat([mask, zeros], -1)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """nn.MultiheadAttention with its parameters as arguments, for inputs [time, batch, features] or without
    a batch dimension. static_k and static_v [batch * heads, time, head size] replace the projections of key
    and value. Source: Vaswani et al. 2017."""
    from . import dropout, scaled_dot_product_attention

    batched = _check_shapes(query, key, value, key_padding_mask, attn_mask)
    if not batched:
        same = query is key and key is value
        key_is_value = key is value
        query = query.unsqueeze(1)
        key = query if same else key.unsqueeze(1)
        value = key if key_is_value else value.unsqueeze(1)
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
    target, batch, size = query.shape
    source = key.shape[0]
    if is_causal and attn_mask is None:
        raise RuntimeError(
            "Need attn_mask if specifying the is_causal hint. You may use the Transformer module "
            "method `generate_square_subsequent_mask` to create this mask."
        )
    padding = _additive(key_padding_mask, "key_padding_mask", query.dtype)
    if is_causal and padding is None and not need_weights:
        mask = None  # the kernel computes the causal mask itself
    else:
        mask = _additive(attn_mask, "attn_mask", query.dtype)
        is_causal = False
    if size != embed_dim_to_check:
        raise AssertionError(
            f"was expecting embedding dimension of {embed_dim_to_check}, but got {size}"
        )
    head = size // num_heads
    if head * num_heads != size:
        raise AssertionError(f"embed_dim {size} not divisible by num_heads {num_heads}")
    if use_separate_proj_weight:
        if key.shape[:2] != value.shape[:2]:
            raise AssertionError(
                f"key's sequence and batch dims {key.shape[:2]} do not match value's "
                f"{value.shape[:2]}"
            )
    elif key.shape != value.shape:
        raise AssertionError(f"key shape {key.shape} does not match value shape {value.shape}")
    q, k, v = _project(
        query,
        key,
        value,
        None if use_separate_proj_weight else in_proj_weight,
        (q_proj_weight, k_proj_weight, v_proj_weight),
        in_proj_bias,
    )
    if mask is not None:
        if mask.dim() == 2:
            if tuple(mask.shape) != (target, source):
                raise RuntimeError(
                    f"The shape of the 2D attn_mask is {mask.shape}, but should be "
                    f"{(target, source)}."
                )
            mask = mask.unsqueeze(0)
        elif tuple(mask.shape) != (batch * num_heads, target, source):
            raise RuntimeError(
                f"The shape of the 3D attn_mask is {mask.shape}, but should be "
                f"{(batch * num_heads, target, source)}."
            )
    if (bias_k is None) != (bias_v is None):
        raise AssertionError("bias_k and bias_v are given together")
    if bias_k is not None and bias_v is not None:
        if static_k is not None or static_v is not None:
            raise AssertionError("bias cannot be added to static key or value.")
        k = tt.cat([k, bias_k.expand(1, batch, size)])
        v = tt.cat([v, bias_v.expand(1, batch, size)])
        mask, padding = _one_more(mask), _one_more(padding)

    def heads(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], batch * num_heads, -1).transpose(0, 1)

    q = heads(q)
    parts = []
    for name, computed, static in (("static_k", k, static_k), ("static_v", v, static_v)):
        if static is None:
            parts.append(heads(computed))
            continue
        if static.shape[0] != batch * num_heads or static.shape[2] != head:
            raise AssertionError(
                f"expecting {name} of {batch * num_heads} times {head}, but got {static.shape}"
            )
        parts.append(static)
    k, v = parts
    if add_zero_attn:
        zeros = tt.zeros((batch * num_heads, 1, head), dtype=k.dtype, device=k.device)
        k, v = tt.cat([k, zeros], 1), tt.cat([v, zeros], 1)
        mask, padding = _one_more(mask), _one_more(padding)
    source = k.shape[1]
    if padding is not None:
        if tuple(padding.shape) != (batch, source):
            raise AssertionError(
                f"expecting key_padding_mask shape of {(batch, source)}, but got {padding.shape}"
            )
        wide = padding.reshape(batch, 1, 1, source).expand(batch, num_heads, 1, source)
        padding = wide.reshape(batch * num_heads, 1, source)
        mask = padding if mask is None else mask + padding
    if not training:
        dropout_p = 0.0

    if need_weights:
        scores = tt.matmul(q * math.sqrt(1.0 / head), k.transpose(-2, -1))
        weights = _ops.softmax(scores if mask is None else scores + mask, -1)
        if dropout_p > 0.0:
            weights = dropout(weights, dropout_p)
        output = tt.matmul(weights, v)
        weights = weights.reshape(batch, num_heads, target, source)
        if average_attn_weights:
            weights = weights.mean(1)
    else:
        if mask is not None:
            mask = (
                mask.unsqueeze(0)
                if mask.shape[0] == 1
                else mask.reshape(batch, num_heads, -1, source)
            )
        q, k, v = (x.reshape(batch, num_heads, -1, head) for x in (q, k, v))
        output = scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)
        output = output.reshape(batch * num_heads, target, head)
    output = output.transpose(0, 1).reshape(target, batch, size)
    output = _ops.linear(output, out_proj_weight, out_proj_bias)
    if not batched:
        output = output.squeeze(1)
    if not need_weights:
        return output, None
    return output, (weights if batched else weights.squeeze(0))
