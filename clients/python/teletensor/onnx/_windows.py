"""ONNX operators that slide a window over the last dimensions: convolutions, pooling, and related ones."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from .. import _api as tt, nn
from .._core import Tensor
from ._file import OnnxError
from ._table import Host, Ints, Node, op
from ._values import bounded

F = nn.functional


def _sides(
    sizes: Ints, kernel: Ints, strides: Ints, dilations: Ints, pads: Ints | None, auto_pad: str
) -> tuple[Ints, Ints]:
    """The padding at the start and at the end of each dimension."""
    rank = len(sizes)
    if auto_pad in ("NOTSET", ""):
        given = list(pads) if pads else [0] * 2 * rank
        if len(given) != 2 * rank:
            raise OnnxError(f"expected {2 * rank} pads, not {len(given)}")
        return given[:rank], given[rank:]
    if auto_pad == "VALID":
        return [0] * rank, [0] * rank
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise OnnxError(f"unknown auto_pad {auto_pad!r}")
    totals = [
        max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        for n, k, s, d in zip(sizes, kernel, strides, dilations)
    ]
    return _halves(totals, auto_pad)


def _halves(totals: Ints, auto_pad: str) -> tuple[Ints, Ints]:
    """Splits each total padding into a part at the start and one at the end; an odd element is at the end
    for SAME_UPPER, and at the start otherwise."""
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


def _pad(x: Tensor, before: Ints, after: Ints, value: Any = 0) -> Tensor:
    sides = [n for pair in zip(reversed(before), reversed(after)) for n in pair]
    return F.pad(x, sides, value=value) if any(sides) else x


_CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def convolution(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    auto_pad: str,
    dilations: Ints | None,
    group: int,
    pads: Ints | None,
    strides: Ints | None,
) -> Tensor:
    """A convolution of one to three dimensions."""
    rank = x.dim() - 2
    if rank not in _CONV or w.dim() != x.dim():
        raise OnnxError(f"a convolution of {list(x.shape)} with {list(w.shape)} is not supported")
    step, spread = strides or [1] * rank, dilations or [1] * rank
    before, after = _sides(list(x.shape[2:]), list(w.shape[2:]), step, spread, pads, auto_pad)
    if before != after or min(before) < 0:
        x, before = _pad(x, before, after), [0] * rank
    return _CONV[rank](x, w, b, step, before, spread, group)


@op("Conv")
def conv(
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: Any = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    return convolution(X, W, B, auto_pad, dilations, group, pads, strides)


@op("ConvTranspose")
def conv_transpose(
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: Any = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    rank = X.dim() - 2
    if rank not in _CONV_TRANSPOSE:
        raise OnnxError(f"a transposed convolution of {list(X.shape)} is not supported")
    step, spread = strides or [1] * rank, dilations or [1] * rank
    more = output_padding or [0] * rank
    whole = [
        s * (n - 1) + m + (k - 1) * d + 1
        for s, n, m, k, d in zip(step, X.shape[2:], more, W.shape[2:], spread)
    ]
    wanted = output_shape[-rank:] if output_shape else None
    if wanted is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(X.shape[2:], step)]
    if wanted is not None:
        before, after = _halves([a - b for a, b in zip(whole, wanted)], auto_pad)
    else:
        before, after = (pads[:rank], pads[rank:]) if pads else ([0] * rank, [0] * rank)
    y = _CONV_TRANSPOSE[rank](X, W, None, step, 0, 0, group, spread)
    y = _pad(y, [-n for n in before], [m - n for m, n in zip(more, after)])
    return y if B is None else y + B.reshape([-1] + [1] * rank)


@op("CausalConvWithState")
def causal_conv_with_state(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
) -> Any:
    size, (batch, channels, _) = weight.shape[2], input.shape
    if past_state is None:
        past_state = tt.zeros(batch, channels, size - 1, dtype=input.dtype)
    whole = tt.cat([past_state, input], 2)
    y = F.conv1d(whole, weight, bias, groups=channels)
    if activation in ("silu", "swish"):
        y = F.silu(y.float()).to(input.dtype)
    elif activation != "none":
        raise OnnxError(f"unknown activation {activation!r}")
    return y, whole[:, :, whole.shape[2] - (size - 1) :]


# ---- pooling


class _Windows:
    """The windows of a pool: for each dimension, which elements each window has. `places[i]` is an array
    [windows, elements]; `inside[i]` says which elements are in the input, and `counted[i]` which are in the
    input or its padding."""

    def __init__(
        self,
        sizes: Ints,
        kernel: Ints,
        strides: Ints | None,
        dilations: Ints | None,
        pads: Ints | None,
        auto_pad: str,
        ceil_mode: bool,
    ) -> None:
        rank = len(sizes)
        if len(kernel) != rank:
            raise OnnxError(f"a window of shape {kernel} does not fit {rank} spatial dimensions")
        self.sizes, self.kernel = sizes, kernel
        self.strides, self.dilations = strides or [1] * rank, dilations or [1] * rank
        self.before, self.after = _sides(sizes, kernel, self.strides, self.dilations, pads, auto_pad)
        self.plain = (
            self.before == self.after
            and not ceil_mode
            and all(2 * p <= k for p, k in zip(self.before, kernel))
        )
        self.places, self.inside, self.counted = [], [], []
        for n, k, s, d, a, b in zip(sizes, kernel, self.strides, self.dilations, self.before, self.after):
            room = n + a + b - d * (k - 1) - 1
            count = (-(-room // s) if ceil_mode else room // s) + 1
            if ceil_mode and (count - 1) * s >= n + a:
                count -= 1
            if room < 0 or count < 1:
                raise OnnxError(f"a window of {kernel} is larger than the input, {sizes}")
            bounded(count * k)
            at = np.arange(count)[:, None] * s + np.arange(k) * d - a
            self.places.append(np.clip(at, 0, n - 1))
            self.inside.append((at >= 0) & (at < n))
            self.counted.append(at < n + b)

    def each(self, arrays: list[Any], combine: Any) -> Any:
        """Combines one array per dimension into one array: the windows of all dimensions first, then the
        elements of all."""
        rank = len(arrays)
        bounded(math.prod(a.size for a in arrays))
        shaped = [
            a.reshape(
                [a.shape[0] if j == i else a.shape[1] if j == i + rank else 1 for j in range(2 * rank)]
            )
            for i, a in enumerate(arrays)
        ]
        found = shaped[0]
        for other in shaped[1:]:
            found = combine(found, other)
        return found

    def gathered(self, x: Tensor, filler: Any) -> Tensor:
        """The elements of all windows, (N, C, windows..., elements...); elements outside of the input are
        `filler`."""
        rank = len(self.sizes)
        for i, at in enumerate(self.places):
            dim = 2 + 2 * i
            x = x.index_select(dim, tt.tensor(at.reshape(-1).astype(np.int64)))
            x = x.reshape([*x.shape[:dim], *at.shape, *x.shape[dim + 1 :]])
        x = x.permute(0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))
        inside = self.each(self.inside, np.logical_and)
        return x if inside.all() else tt.where(tt.tensor(inside), x, tt.full([], filler, dtype=x.dtype))


_MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


def _least(x: Tensor) -> Any:
    return -math.inf if x.is_floating_point() else tt.iinfo(x.dtype).min


@op("MaxPool")
def max_pool(
    X: Tensor,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: Any = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    storage_order: Any = 0,
    strides: Ints | None = None,
    node: Node,
) -> Any:
    rank = X.dim() - 2
    w = _Windows(list(X.shape[2:]), kernel_shape, strides, dilations, pads, auto_pad, bool(ceil_mode))
    if w.plain and len(node.outputs) == 1 and rank in _MAX_POOL and X.is_floating_point():
        return _MAX_POOL[rank](X, kernel_shape, w.strides, w.before, w.dilations)
    flat = w.gathered(X, _least(X)).flatten(2 + rank)
    if len(node.outputs) == 1:
        return flat.amax(-1)
    chosen = flat.argmax(-1, keepdim=True)
    strides_ = [math.prod(w.sizes[i + 1 :]) for i in range(rank)]
    if storage_order:
        strides_ = [math.prod(w.sizes[:i]) for i in range(rank)]
    table = w.each([p * s for p, s in zip(w.places, strides_)], np.add)
    table = np.ascontiguousarray(table).reshape(1, 1, *flat.shape[2:])
    at = tt.gather(tt.tensor(table.astype(np.int64)).expand(flat.shape), -1, chosen).squeeze(-1)
    plane = math.prod(w.sizes)
    first = tt.arange(X.shape[0] * X.shape[1]).reshape([*X.shape[:2]] + [1] * rank) * plane
    return tt.gather(flat, -1, chosen).squeeze(-1), at + first


def _average(x: Tensor, w: _Windows, count_include_pad: bool) -> Tensor:
    rank = len(w.sizes)
    total = w.gathered(x, 0).flatten(2 + rank).sum(-1)
    share = w.each(w.counted if count_include_pad else w.inside, np.logical_and)
    counts = share.reshape(*share.shape[:rank], -1).sum(-1)
    return total / tt.tensor(counts.astype(np.float32)).to(x.dtype)


@op("AveragePool")
def average_pool(
    X: Tensor,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: Any = 0,
    count_include_pad: Any = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    w = _Windows(list(X.shape[2:]), kernel_shape, strides, dilations, pads, auto_pad, bool(ceil_mode))
    if w.plain and X.dim() == 4 and w.dilations == [1, 1]:
        return F.avg_pool2d(X, kernel_shape, w.strides, w.before, False, bool(count_include_pad))
    return _average(X, w, bool(count_include_pad))


@op("LpPool")
def lp_pool(
    X: Tensor,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: Any = 0,
    dilations: Ints | None = None,
    p: Any = 2,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Any:
    w = _Windows(list(X.shape[2:]), kernel_shape, strides, dilations, pads, auto_pad, bool(ceil_mode))
    powers = w.gathered(X.abs() ** p, 0).flatten(X.dim())
    return powers.sum(-1) ** (1.0 / p)


@op("GlobalAveragePool")
def global_average_pool(X: Tensor) -> Tensor:
    return X.mean(list(range(2, X.dim())), keepdim=True)


@op("GlobalMaxPool")
def global_max_pool(X: Tensor) -> Tensor:
    return X.amax(list(range(2, X.dim())), keepdim=True)


@op("GlobalLpPool")
def global_lp_pool(X: Tensor, *, p: Any = 2) -> Any:
    return (X.abs() ** p).sum(list(range(2, X.dim())), keepdim=True) ** (1.0 / p)


@op("MaxUnpool")
def max_unpool(
    X: Tensor,
    indices: Tensor,
    output_shape: Ints | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    rank = X.dim() - 2
    step, around = strides or [1] * rank, pads or [0] * 2 * rank
    sizes = [
        (n - 1) * s + k - around[i] - around[i + rank]
        for i, (n, s, k) in enumerate(zip(X.shape[2:], step, kernel_shape))
    ]
    shape = [*X.shape[:2], *sizes]
    flat = tt.zeros(math.prod(shape), dtype=X.dtype)
    y = tt.scatter(flat, 0, indices.reshape(-1), X.reshape(-1)).reshape(shape)
    if output_shape is None:
        return y
    return _pad(y, [0] * rank, [a - b for a, b in zip(output_shape[2:], sizes)])


@op("Col2Im")
def col2im(
    input: Tensor,
    image_shape: Ints,
    block_shape: Ints,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    rank = len(image_shape)
    w = _Windows(image_shape, block_shape, strides, dilations, pads, "NOTSET", False)
    at = w.each([p * math.prod(image_shape[i + 1 :]) for i, p in enumerate(w.places)], np.add)
    inside = w.each(w.inside, np.logical_and)
    order = (*range(rank, 2 * rank), *range(rank))  # the elements of a block first, then the blocks
    places = tt.tensor(np.ascontiguousarray(at.transpose(order)).reshape(-1).astype(np.int64))
    kept = tt.tensor(np.ascontiguousarray(inside.transpose(order)).reshape(-1))
    batch, block = input.shape[0], math.prod(block_shape)
    values = input.reshape(batch, input.shape[1] // block, -1) * kept
    image = tt.zeros(batch, values.shape[1], math.prod(image_shape), dtype=input.dtype)
    return tt.scatter_add(image, 2, places.expand(values.shape), values).reshape(
        [*values.shape[:2], *image_shape]
    )


# ---- samples at positions between elements


def _bilinear(x: Tensor, y_at: Tensor, x_at: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The values and weights of the four neighbouring elements of positions (N, points): (N, C, points) and
    (N, 1, points) for each; an element outside of the image has the value 0."""
    n, c, h, w = x.shape
    flat = x.reshape(n, c, h * w)
    top, left = y_at.floor(), x_at.floor()
    values, weights = [], []
    for down, right in itertools.product((0, 1), (0, 1)):
        row, column = top + down, left + right
        share = (1 - (y_at - row).abs()) * (1 - (x_at - column).abs())
        known = (row >= 0) & (row < h) & (column >= 0) & (column < w)
        at = row.clamp(0, h - 1).to(tt.int64) * w + column.clamp(0, w - 1).to(tt.int64)
        values.append(tt.gather(flat, 2, at.unsqueeze(1).expand(n, c, at.shape[1])))
        weights.append((share * known).unsqueeze(1).to(x.dtype))
    return values, weights


@op("DeformConv")
def deform_conv(
    X: Tensor,
    W: Tensor,
    offset: Tensor,
    B: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Ints | None = None,
    group: Any = 1,
    kernel_shape: Ints | None = None,
    offset_group: Any = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    if X.dim() != 4:
        raise OnnxError(f"DeformConv of {list(X.shape)} is not supported")
    n, c, _, _ = X.shape
    kernel = list(W.shape[2:])
    w = _Windows(list(X.shape[2:]), kernel, strides, dilations, pads, "NOTSET", False)
    (oh, ow), taps = offset.shape[2:], math.prod(kernel)
    moved = offset.reshape(n, offset_group, taps, 2, oh, ow)
    at = [
        tt.tensor((np.arange(o)[:, None] * s + np.arange(k) * d - b).astype(np.float32))
        for o, s, k, d, b in zip((oh, ow), w.strides, kernel, w.dilations, w.before)
    ]
    rows = at[0].t().reshape(kernel[0], 1, oh, 1).expand(*kernel, oh, ow).reshape(taps, oh, ow)
    columns = at[1].t().reshape(1, kernel[1], 1, ow).expand(*kernel, oh, ow).reshape(taps, oh, ow)
    points = taps * oh * ow
    parts = X.reshape(n * offset_group, c // offset_group, *X.shape[2:])
    values, weights = _bilinear(
        parts,
        (moved[:, :, :, 0] + rows).reshape(n * offset_group, points),
        (moved[:, :, :, 1] + columns).reshape(n * offset_group, points),
    )
    sampled = sum((v * s for v, s in zip(values[1:], weights[1:])), values[0] * weights[0])
    sampled = sampled.reshape(n, offset_group, c // offset_group, taps, oh * ow)
    if mask is not None:
        sampled = sampled * mask.reshape(n, offset_group, 1, taps, oh * ow)
    columns_ = sampled.reshape(n, group, c // group * taps, oh * ow)
    weight = W.reshape(group, W.shape[0] // group, -1)
    y = tt.matmul(weight, columns_).reshape(n, W.shape[0], oh, ow)
    return y if B is None else y + B.reshape(-1, 1, 1)


@op("RoiAlign", since=16)
def roi_align(
    X: Tensor,
    rois: Host,
    batch_indices: Host,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: Any = 1,
    output_width: Any = 1,
    sampling_ratio: Any = 0,
    spatial_scale: Any = 1.0,
) -> Tensor:
    moved = 0.5 if coordinate_transformation_mode == "half_pixel" else 0.0
    h, w = X.shape[2:]
    results = []
    for (x0, y0, x1, y1), image in zip(rois.astype(np.float64) * spatial_scale - moved, batch_indices):
        height, width = y1 - y0, x1 - x0
        if not moved:
            height, width = max(height, 1.0), max(width, 1.0)
        rows, row_count = _samples(y0, height, output_height, sampling_ratio)
        columns, column_count = _samples(x0, width, output_width, sampling_ratio)
        outside = (rows < -1)[:, None] | (rows > h)[:, None] | (columns < -1) | (columns > w)
        grid = np.broadcast_arrays(np.clip(rows, 0, h - 1)[:, None], np.clip(columns, 0, w - 1))
        at = [tt.tensor(np.ascontiguousarray(g).reshape(1, -1)) for g in grid]
        values, weights = _bilinear(X[int(image)].unsqueeze(0), at[0], at[1])
        inside = tt.tensor(~outside.reshape(-1))
        parts = [v * s * inside for v, s in zip(values, weights)]
        shape = (X.shape[1], output_height, row_count, output_width, column_count)
        if mode == "max":
            found = tt.stack(parts).amax(0).reshape(shape).amax((2, 4))
        else:
            found = sum(parts[1:], parts[0]).reshape(shape).mean((2, 4))
        results.append(found)
    return (
        tt.stack(results)
        if results
        else tt.zeros(0, X.shape[1], output_height, output_width, dtype=X.dtype)
    )


@op("RoiAlign", since=10)
def roi_align_10(
    X: Tensor,
    rois: Host,
    batch_indices: Host,
    *,
    mode: str = "avg",
    output_height: Any = 1,
    output_width: Any = 1,
    sampling_ratio: Any = 0,
    spatial_scale: Any = 1.0,
) -> Any:
    return roi_align(
        X,
        rois,
        batch_indices,
        coordinate_transformation_mode="output_half_pixel",
        mode=mode,
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )


def _samples(begin: float, size: float, bins: int, ratio: int) -> tuple[np.ndarray[Any, Any], int]:
    each = ratio if ratio > 0 else max(math.ceil(size / bins), 1)
    bounded((bins * each) ** 2)
    return begin + (np.arange(bins * each) + 0.5) * (size / bins / each), each
