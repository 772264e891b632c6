"""ONNX operators of neural networks: normalisations, attention, losses, detection, training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import _api as tt, nn
from .._core import Tensor
from . import _resize, _windows  # noqa: F401
from ._file import OnnxError
from ._table import Host, Ints, Node, Run, op
from ._values import bounded, dtype, host, type_name

F = nn.functional


def _channels(x: Tensor, rank: int) -> Tensor:
    return x.reshape([-1] + [1] * (rank - 2))


@op("BatchNormalization")
def batch_normalization(
    X: Tensor,
    scale: Tensor,
    B: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: Any = 1e-5,
    momentum: Any = 0.9,
    training_mode: Any = 0,
    spatial: Any = 1,
) -> Any:
    mean, var = input_mean, input_var
    if training_mode:
        dims = [0, *range(2, X.dim())]
        mean, var = X.mean(dims).to(mean.dtype), X.var(dims, correction=0).to(var.dtype)
    factor = scale.to(var.dtype) / tt.sqrt(var + epsilon)
    rank = max(X.dim(), 2)
    y = ((X - _channels(mean, rank)) * _channels(factor, rank) + _channels(B, rank)).to(X.dtype)
    if not training_mode:
        return y
    return (y, input_mean * momentum + mean * (1 - momentum), input_var * momentum + var * (1 - momentum))


@op("InstanceNormalization")
def instance_normalization(input: Tensor, scale: Tensor, B: Tensor, *, epsilon: Any = 1e-5) -> Tensor:
    return F.instance_norm(input, None, None, scale, B, True, 0.0, epsilon)


@op("LayerNormalization")
def layer_normalization(
    X: Tensor,
    Scale: Tensor,
    B: Tensor | None = None,
    *,
    axis: Any = -1,
    epsilon: Any = 1e-5,
    stash_type: Any = 1,
    node: Node,
) -> Any:
    dims = list(range(axis % X.dim(), X.dim()))
    if (
        len(node.outputs) == 1
        and Scale.dtype == X.dtype
        and list(Scale.shape) == [X.shape[d] for d in dims]
    ):
        return F.layer_norm(X, Scale.shape, Scale, B, epsilon)
    wide = X.to(dtype(type_name(stash_type)))
    mean = wide.mean(dims, keepdim=True)
    centred = wide - mean
    inverse = tt.rsqrt((centred * centred).mean(dims, keepdim=True) + epsilon)
    y = (centred * inverse).to(X.dtype) * Scale
    return (y if B is None else y + B), mean, inverse


@op("RMSNormalization")
def rms_normalization(
    X: Tensor, scale: Tensor, *, axis: Any = -1, epsilon: Any = 1e-5, stash_type: Any = 1
) -> Tensor:
    wide = X.to(dtype(type_name(stash_type)))
    dims = list(range(axis % X.dim(), X.dim()))
    return (wide * tt.rsqrt((wide * wide).mean(dims, keepdim=True) + epsilon)).to(X.dtype) * scale


def _group(x: Tensor, groups: int, epsilon: float) -> Tensor:
    return F.group_norm(x, groups, None, None, epsilon)


@op("GroupNormalization", since=21)
def group_normalization(
    X: Tensor, scale: Tensor, bias: Tensor, *, epsilon: Any = 1e-5, num_groups: Any, stash_type: Any = 1
) -> Tensor:
    y = _group(X.to(dtype(type_name(stash_type))), num_groups, epsilon).to(X.dtype)
    return y * _channels(scale, X.dim()) + _channels(bias, X.dim())


@op("GroupNormalization", since=18)
def group_normalization_18(
    X: Tensor, scale: Tensor, bias: Tensor, *, epsilon: Any = 1e-5, num_groups: Any
) -> Any:
    each = X.shape[1] // num_groups
    return group_normalization(
        X,
        scale.repeat_interleave(each),
        bias.repeat_interleave(each),
        epsilon=epsilon,
        num_groups=num_groups,
    )


@op("MeanVarianceNormalization")
def mean_variance_normalization(X: Tensor, *, axes: Ints | None = None) -> Tensor:
    dims = [0, 2, 3] if axes is None else axes
    centred = X - X.mean(dims, keepdim=True)
    return centred / (tt.sqrt((centred * centred).mean(dims, keepdim=True)) + 1e-9)


@op("LpNormalization")
def lp_normalization(input: Tensor, *, axis: Any = -1, p: Any = 2) -> Any:
    norm = (
        input.abs().sum(axis, keepdim=True) if p == 1 else tt.sqrt((input * input).sum(axis, keepdim=True))
    )
    return tt.where(norm == 0, tt.zeros_like(input), input / norm)


@op("LRN")
def lrn(X: Tensor, *, alpha: Any = 1e-4, beta: Any = 0.75, bias: Any = 1.0, size: Any) -> Any:
    bounded(size)
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = F.pad(X * X, [0, 0] * (X.dim() - 2) + [before, after])
    total = sum(
        (squares.narrow(1, i, X.shape[1]) for i in range(1, size)), squares.narrow(1, 0, X.shape[1])
    )
    return X / (bias + alpha / size * total) ** beta


# ---- attention


def _heads(x: Tensor, count: int | None) -> Tensor:
    """Reshapes (batch, length, heads * size) to (batch, heads, length, size)."""
    if x.dim() == 4:
        return x
    if x.dim() != 3 or not count:
        raise OnnxError(f"the number of heads of {list(x.shape)} is unknown")
    return x.reshape(*x.shape[:2], count, -1).transpose(1, 2)


def _repeated(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


@op("Attention")
def attention(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: Any = 0,
    kv_num_heads: Any = None,
    left_window_size: Any = -1,
    q_num_heads: Any = None,
    qk_matmul_output_mode: Any = 0,
    right_window_size: Any = -1,
    scale: Any = None,
    softcap: Any = 0.0,
    softmax_precision: Any = None,
) -> Any:
    flat, kind = Q.dim() == 3, Q.dtype
    q, k, v = _heads(Q, q_num_heads), _heads(K, kv_num_heads), _heads(V, kv_num_heads)
    if past_key is not None and past_value is not None:
        k, v = tt.cat([past_key, k], 2), tt.cat([past_value, v], 2)
    present = k, v
    queries, keys = q.shape[2], k.shape[2]
    k, v = _repeated(k, q.shape[1]), _repeated(v, q.shape[1])

    # The bias of each pair: 0 where a query may attend to a key, and minus infinity elsewhere.
    never = tt.full([], -math.inf, dtype=kind)
    bias = tt.zeros(queries, keys, dtype=kind)
    if attn_mask is not None:
        boolean = attn_mask.dtype == tt.bool
        if attn_mask.shape[-1] < keys:
            fill = [0, keys - attn_mask.shape[-1]]
            attn_mask = (
                F.pad(attn_mask.to(tt.uint8), fill).to(tt.bool)
                if boolean
                else F.pad(attn_mask, fill, value=-math.inf)
            )
        bias = bias + (tt.where(attn_mask, tt.zeros([], dtype=kind), never) if boolean else attn_mask)
    ends: Any = 0 if past_key is None else past_key.shape[2]
    if past_key is None and nonpad_kv_seqlen is not None:
        ends = nonpad_kv_seqlen.reshape(-1, 1, 1, 1) - queries
    distance = tt.arange(queries).unsqueeze(1) + ends - tt.arange(keys)
    if is_causal:
        bias = bias + tt.where(distance >= 0, tt.zeros([], dtype=kind), never)
    if left_window_size >= 0:
        bias = bias + tt.where(distance <= left_window_size, tt.zeros([], dtype=kind), never)
    if right_window_size >= 0:
        bias = bias + tt.where(-distance <= right_window_size, tt.zeros([], dtype=kind), never)
    if nonpad_kv_seqlen is not None:
        known = tt.arange(keys) < nonpad_kv_seqlen.reshape(-1, 1, 1, 1)
        bias = bias + tt.where(known, tt.zeros([], dtype=kind), never)

    factor = math.sqrt(1 / math.sqrt(q.shape[3]) if scale is None else scale)
    scores = tt.matmul((q * factor).to(kind), (k * factor).to(kind).transpose(-1, -2))
    raw = scores
    if softcap:
        scores = (tt.tanh(scores / softcap) * softcap).to(kind)
    capped = scores
    scores = scores + bias
    wide = scores if softmax_precision is None else scores.to(dtype(type_name(softmax_precision)))
    blind = tt.isneginf(bias.amax(-1, keepdim=True))
    shares = tt.where(blind, tt.zeros([], dtype=wide.dtype), F.softmax(wide, -1)).to(kind)
    y = tt.matmul(shares, v)
    if flat:
        y = y.transpose(1, 2).flatten(2)
    shown = (raw, capped, scores, shares)[qk_matmul_output_mode]
    return y, *present, shown


@op("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    *,
    prob_mod: Any = None,
    scale: Any = None,
    score_mod: Any = None,
    softmax_precision: Any = None,
    run: Run,
) -> Tensor:
    kind = Q.dtype
    factor = math.sqrt(1 / math.sqrt(Q.shape[3]) if scale is None else scale)
    k, v = _repeated(K, Q.shape[1]), _repeated(V, Q.shape[1])
    scores = tt.matmul((Q * factor).to(kind), (k * factor).to(kind).transpose(-1, -2))
    wide = tt.float32 if kind.itemsize < 4 else kind
    scores = scores.to(wide if softmax_precision is None else dtype(type_name(softmax_precision)))
    wide = scores.dtype
    if score_mod is not None:
        scores = run(score_mod, scores)[0].to(wide)
    shares = F.softmax(scores, -1)
    if prob_mod is not None:
        shares = run(prob_mod, shares)[0].to(wide)
    return tt.matmul(shares, v.to(wide)).to(V.dtype)


@op("LinearAttention")
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: Any = None,
    kv_num_heads: Any,
    q_num_heads: Any,
    scale: Any = 0.0,
    update_rule: str = "gated_delta",
) -> Any:
    gated, delta = update_rule in ("gated", "gated_delta"), update_rule in ("delta", "gated_delta")
    if (decay is not None) != gated or (beta is not None) != delta:
        raise OnnxError(f"decay and beta do not fit update_rule {update_rule!r}")
    q = _heads(query, q_num_heads).float()
    k, v = _heads(key, kv_num_heads).float(), _heads(value, kv_num_heads).float()
    state = (
        tt.zeros(q.shape[0], kv_num_heads, k.shape[3], v.shape[3])
        if past_state is None
        else past_state.float()
    )
    factor = scale or 1 / math.sqrt(q.shape[3])
    rows = []
    for i in range(q.shape[2]):
        at, new = k[:, :, i].unsqueeze(-1), v[:, :, i].unsqueeze(-2)
        if decay is not None:
            state = state * tt.exp(_heads(decay, kv_num_heads).float()[:, :, i].unsqueeze(-1))
        if beta is not None:
            share = beta[:, i].float().unsqueeze(-1).unsqueeze(-1)
            new = share * (new - (state * at).sum(-2, keepdim=True))
        state = state + at * new
        rows.append(factor * tt.matmul(q[:, :, i].unsqueeze(-2), _repeated(state, q_num_heads)).squeeze(-2))
    y = tt.stack(rows, 1).flatten(2).to(query.dtype)
    return y, state.to(query.dtype if past_state is None else past_state.dtype)


@op("RotaryEmbedding")
def rotary_embedding(
    X: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: Any = 0,
    num_heads: Any = None,
    rotary_embedding_dim: Any = 0,
) -> Tensor:
    x = _heads(X, num_heads)
    size = rotary_embedding_dim or x.shape[3]
    if position_ids is not None:
        places = position_ids.to(tt.int64)
        cos_cache, sin_cache = cos_cache[places], sin_cache[places]
    cosine, sine = cos_cache.unsqueeze(1), sin_cache.unsqueeze(1)
    turned, rest = x[..., :size], x[..., size:]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
    else:
        a, b = turned[..., : size // 2], turned[..., size // 2 :]
    real, imaginary = cosine * a - sine * b, sine * a + cosine * b
    if interleaved:
        joined = tt.stack([real, imaginary], -1).flatten(-2)
    else:
        joined = tt.cat([real, imaginary], -1)
    y = tt.cat([joined, rest], -1)
    return y if X.dim() == 4 else y.transpose(1, 2).flatten(2)


# ---- losses


def _loss(
    scores: Tensor, target: Tensor, weight: Tensor | None, ignored: int | None, reduction: str
) -> Tensor:
    classes = scores.shape[1]
    flat = scores.reshape(*scores.shape[:2], -1).transpose(1, 2).reshape(-1, classes)
    found = F.nll_loss(
        flat,
        target.reshape(-1).to(tt.int64),
        weight,
        reduction=reduction,
        ignore_index=-(2**31) if ignored is None else ignored,
    )
    return found.reshape(target.shape) if reduction == "none" else found


@op("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: Any = None,
    reduction: str = "mean",
) -> Tensor:
    return _loss(input, target, weight, ignore_index, reduction)


@op("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: Any = None,
    reduction: str = "mean",
) -> Any:
    logarithms = F.log_softmax(scores, 1)
    return _loss(logarithms, labels, weights, ignore_index, reduction), logarithms


# ---- detection


@op("NonMaxSuppression")
def non_max_suppression(
    boxes: Host,
    scores: Host,
    max_output_boxes_per_class: Ints | None = None,
    iou_threshold: Host | None = None,
    score_threshold: Host | None = None,
    *,
    center_point_box: Any = 0,
) -> Any:
    most = max_output_boxes_per_class[0] if max_output_boxes_per_class else 0
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.reshape(-1)[0])
    least = -math.inf if score_threshold is None else float(score_threshold.reshape(-1)[0])
    found: list[list[int]] = []
    for image, corners in enumerate(boxes):
        if center_point_box:
            half = corners[:, 2:] / 2
            corners = np.concatenate([corners[:, :2] - half, corners[:, :2] + half], 1)
        low, high = np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])
        areas = np.prod(high - low, 1)
        for label, own in enumerate(scores[image]):
            kept: list[int] = []
            for box in np.argsort(-own, kind="stable"):
                if len(kept) >= most or not own[box] > least:
                    break
                common = np.prod(
                    np.maximum(np.minimum(high[kept], high[box]) - np.maximum(low[kept], low[box]), 0), -1
                )
                union = areas[kept] + areas[box] - common
                if not (common > overlap * union).any():
                    kept.append(int(box))
            found += [[image, label, box] for box in kept]
    return np.array(found, np.int64).reshape(-1, 3)


# ---- training steps


@op("Momentum", domain="ai.onnx.preview.training")
def momentum(
    R: Tensor, T: Host, *inputs: Tensor, alpha: Any, beta: Any, mode: str, norm_coefficient: Any
) -> Any:
    count = len(inputs) // 3
    rate = beta if int(T) > 0 else 1.0
    new, speeds = [], []
    for x, g, v in zip(inputs[:count], inputs[count : 2 * count], inputs[2 * count :]):
        g = g + norm_coefficient * x
        v = alpha * v + rate * g
        new.append(x - R * (g + alpha * v if mode == "nesterov" else v))
        speeds.append(v)
    return (*new, *speeds)


@op("Adagrad", domain="ai.onnx.preview.training")
def adagrad(
    R: Tensor,
    T: Host,
    *inputs: Tensor,
    decay_factor: Any = 0.0,
    epsilon: Any = 1e-6,
    norm_coefficient: Any = 0.0,
) -> Any:
    count = len(inputs) // 3
    rate = R / (1 + int(T) * decay_factor)
    new, sums = [], []
    for x, g, h in zip(inputs[:count], inputs[count : 2 * count], inputs[2 * count :]):
        g = g + norm_coefficient * x
        h = h + g * g
        new.append(x - rate * g / (tt.sqrt(h) + epsilon))
        sums.append(h)
    return (*new, *sums)


@op("Adam", domain="ai.onnx.preview.training")
def adam(
    R: Tensor,
    T: Host,
    *inputs: Tensor,
    alpha: Any = 0.9,
    beta: Any = 0.999,
    epsilon: Any = 1e-6,
    norm_coefficient: Any = 0.0,
    norm_coefficient_post: Any = 0.0,
) -> Any:
    count, turn = len(inputs) // 4, int(host(T))
    rate = R * math.sqrt(1 - beta**turn) / (1 - alpha**turn) if turn > 0 else R
    parts = [inputs[i * count : (i + 1) * count] for i in range(4)]
    new, firsts, seconds = [], [], []
    for x, g, v, h in zip(*parts):
        g = norm_coefficient * x + g
        v, h = alpha * v + (1 - alpha) * g, beta * h + (1 - beta) * g * g
        new.append((1 - norm_coefficient_post) * (x - rate * v / (tt.sqrt(h) + epsilon)))
        firsts.append(v)
        seconds.append(h)
    return (*new, *firsts, *seconds)
