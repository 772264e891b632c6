"""Padding, resizing, sampling, and windows of images and volumes."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from ... import _api as tt
from ..._functions.common import tied
from ..._names import ops as _ops
from ..._tensors.tensor import Tensor
from ._sizes import Size, sizes
from .pooling import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d

__all__ = [
    "affine_grid",
    "channel_shuffle",
    "fold",
    "grid_sample",
    "interpolate",
    "pad",
    "pixel_shuffle",
    "pixel_unshuffle",
    "unfold",
    "upsample",
    "upsample_bilinear",
    "upsample_nearest",
]

# ---------------------------------------------------------------- padding


def _places(mode: str, size: int, before: int, after: int, like: Tensor) -> Tensor:
    """The index of the source of each element of a padded dimension."""
    index = tt.arange(-before, size + after, device=like.device)
    if mode == "replicate":
        return index.clamp(0, size - 1)
    if size == 0 and before + after > 0:
        raise RuntimeError(f"pad: mode {mode!r} has nothing to repeat in a dimension of size 0")
    if mode == "circular":
        return tt.remainder(index, size)
    index = index.abs()
    return (size - 1) - ((size - 1) - index).abs()


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pads input with pad[0] elements at the start and pad[1] at the end of its last dimension, pad[2] and
    pad[3] for the second to last, and so on; negative numbers remove elements.

    mode "constant" fills with `value` (0 by default); "reflect" mirrors without repeating the edge;
    "replicate" repeats the edge; "circular" continues with the elements of the other end. The last three
    take input of 2 to 5 dimensions and pad the last 1 to 3.
    """
    edges = [operator.index(p) for p in pad]
    if mode == "constant":
        return tt.constant_pad_nd(input, edges, 0 if value is None else value)
    if mode not in ("reflect", "replicate", "circular"):
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if value is not None and value != 0:
        raise ValueError(f'Padding mode "{mode}" doesn\'t take in value argument')
    count, rank = len(edges) // 2, input.dim()
    if len(edges) % 2 or not 1 <= count <= 3 or rank not in (count + 1, count + 2):
        raise NotImplementedError(
            f"pad: mode {mode!r} pads the last 1, 2 or 3 dimensions of 2D to 5D input, with an "
            f"optional batch; got pad {edges} for input of shape {list(input.shape)}"
        )
    places: dict[int, Tensor] = {}
    for i in range(count):
        dim, before, after = rank - 1 - i, edges[2 * i], edges[2 * i + 1]
        size = input.shape[dim]
        if mode == "reflect" and (before >= size or after >= size):
            raise RuntimeError(
                f"pad: reflect padding {(before, after)} must be smaller than dimension {dim} of "
                f"input of shape {list(input.shape)}"
            )
        if mode == "circular" and (before > size or after > size):
            raise RuntimeError(
                f"pad: circular padding {(before, after)} must be at most dimension {dim} of "
                f"input of shape {list(input.shape)}: it would wrap around more than once"
            )
        if size == 0 or size + before + after < 1:
            raise RuntimeError(
                f"pad: {(before, after)} leaves nothing of dimension {dim} of input of shape "
                f"{list(input.shape)}"
            )
        if mode == "circular" and (before < 0 or after < 0):
            start = max(-before, 0)
            size = size - start - max(-after, 0)
            input = input.narrow(dim, start, size)
            before, after = max(before, 0), max(after, 0)
        if before or after:
            places[dim] = _places(mode, size, before, after, input)
    dims = sorted(places)
    if len(dims) > 1 and dims[-1] - dims[0] == len(dims) - 1:  # adjacent dimensions are padded in one pass
        columns = [places[d].view([-1] + [1] * (dims[-1] - d)) for d in dims]
        return _ops.index(input, columns, dims)
    for dim in dims:
        input = _ops.index_select(input, places[dim], dim)
    return input


# ---------------------------------------------------------------- resizing

_SPATIAL = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}


def interpolate(
    input: Tensor,
    size: Size | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resizes the 1 to 3 spatial dimensions of input [N, C, ...] to `size`, or by scale_factor.

    mode is nearest, nearest-exact, linear (3-d input), bilinear or bicubic (4-d), trilinear (5-d), or area
    (means). With align_corners the centres of the corner elements stay in place, without it the outer
    corners of these elements do. antialias applies to bilinear and bicubic if the result is smaller.
    """
    spatial = input.dim() - 2
    if mode not in ("nearest", "nearest-exact", "area", *_SPATIAL):
        raise NotImplementedError(f"interpolate: no mode {mode!r}")
    if mode in _SPATIAL:
        align = bool(align_corners)
        if spatial != _SPATIAL[mode]:
            raise NotImplementedError(
                f"interpolate: got {input.dim()}D input of shape {list(input.shape)}, but mode "
                f"{mode!r} needs {_SPATIAL[mode] + 2}D input"
            )
    else:
        align = False
        if align_corners is not None:
            raise ValueError(
                "align_corners option can only be set with the interpolating modes: "
                "linear | bilinear | bicubic | trilinear"
            )
    if not 1 <= spatial <= 3:
        raise NotImplementedError(
            f"interpolate: needs 3D, 4D or 5D input, got shape {list(input.shape)}"
        )
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(
            "Anti-alias option is restricted to bilinear and bicubic modes and requires a 4-D "
            "tensor as input"
        )
    if (size is None) == (scale_factor is None):
        raise ValueError("only one of size or scale_factor should be defined")
    scales: list[float | None] = [None] * spatial
    own = tuple(input.shape[2:])
    if size is not None:
        if recompute_scale_factor:
            raise ValueError(
                "recompute_scale_factor is not meaningful when size is explicitly provided"
            )
        if not isinstance(size, int) and len(size) != spatial:
            raise ValueError(
                f"Input and output must have the same number of spatial dimensions, but got input "
                f"with spatial dimensions of {list(own)} and output size of {list(size)}"
            )
        wanted = sizes("interpolate", "size", size, spatial)
    else:
        if isinstance(scale_factor, (int, float)):
            factors = [float(scale_factor)] * spatial
        else:
            assert scale_factor is not None
            factors = [float(f) for f in scale_factor]
            if len(factors) != spatial:
                raise ValueError(
                    f"Input and scale_factor must have the same number of spatial dimensions, but "
                    f"got input with spatial dimensions of {list(own)} and scale_factor of shape "
                    f"{factors}"
                )
        wanted = tuple(math.floor(n * f) for n, f in zip(own, factors, strict=True))
        if not recompute_scale_factor:
            scales = list(factors)
    if mode == "area":
        run: Any = (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[spatial - 1]
        result: Tensor = run(input, wanted)
        return result
    kind = {"bicubic": "cubic", "nearest": "nearest", "nearest-exact": "nearest-exact"}.get(
        mode, "linear"
    )
    for n, w in zip(own, wanted, strict=True):
        if n < 1 or w < 1:
            raise RuntimeError(
                f"Input and output sizes should be greater than 0, but got input {list(own)} and "
                f"output {list(wanted)}"
            )
    narrow = input.dtype in (tt.float16, tt.bfloat16) and kind in ("linear", "cubic")
    image = input.dtype == tt.uint8 and mode in ("bilinear", "bicubic")
    x = input.to(tt.float32) if narrow or image else input
    for d in reversed(range(spatial)):
        same = own[d] == wanted[d] and (scales[d] in (None, 1.0))
        if not same:
            x = _ops.resample(x, d + 2, wanted[d], kind, align, antialias, scales[d])
            if image:
                x = (x + 0.5).floor().clamp(0, 255)
    if x is input:
        return input.clone()
    return x.to(input.dtype) if narrow or image else x


def upsample(
    input: Tensor,
    size: Size | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """The older name of interpolate."""
    warnings.warn(
        "`nn.functional.upsample` is deprecated. Use `nn.functional.interpolate` instead.",
        stacklevel=2,
    )
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(
    input: Tensor, size: Size | None = None, scale_factor: float | Sequence[float] | None = None
) -> Tensor:
    """As interpolate with mode="nearest"."""
    warnings.warn(
        "`nn.functional.upsample_nearest` is deprecated. Use `nn.functional.interpolate` instead.",
        stacklevel=2,
    )
    return interpolate(input, size, scale_factor, mode="nearest")


def upsample_bilinear(
    input: Tensor, size: Size | None = None, scale_factor: float | Sequence[float] | None = None
) -> Tensor:
    """As interpolate with mode="bilinear" and align_corners=True."""
    warnings.warn(
        "`nn.functional.upsample_bilinear` is deprecated. Use `nn.functional.interpolate` instead.",
        stacklevel=2,
    )
    return interpolate(input, size, scale_factor, mode="bilinear", align_corners=True)


# ---------------------------------------------------------------- sampling


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """A grid for grid_sample: the positions in [-1, 1] to which the affine maps theta [N, 2, 3] (or [N, 3,
    4]) send the elements of an output of `size` [N, C, H, W] (or [N, C, D, H, W])."""
    if not theta.dtype.is_floating_point:
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    spatial = len(size) - 2
    if spatial not in (2, 3):
        raise NotImplementedError(
            f"affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, "
            f"respectively. Got size {list(size)}."
        )
    if tuple(theta.shape[1:]) != (spatial, spatial + 1) or theta.dim() != 3:
        raise ValueError(
            f"Expected a batch of {spatial}D affine matrices of shape Nx{spatial}x{spatial + 1} "
            f"for size {list(size)}. Got {list(theta.shape)}."
        )
    if min(size) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {list(size)}")
    axes = []
    for n in size[2:]:
        if n <= 1:
            axis = tt.zeros(n, dtype=theta.dtype, device=theta.device)
        else:
            axis = tt.linspace(-1, 1, n, dtype=theta.dtype, device=theta.device)
            if not align_corners:
                axis = axis * ((n - 1) / n)
        axes.append(axis)
    places = list(reversed(tt.meshgrid(*axes, indexing="ij")))
    base = tt.stack([*places, tt.ones_like(places[0])], -1).reshape((1, -1, spatial + 1))
    grid: Tensor = tt.matmul(base, theta.transpose(1, 2))
    return grid.reshape((theta.shape[0], *size[2:], spatial))


def _reflect(x: Tensor, low2: int, high2: int) -> Tensor:
    """x reflected into [low2 / 2, high2 / 2]."""
    if low2 == high2:
        return tt.zeros_like(x)
    low, span = low2 / 2, (high2 - low2) / 2
    distance = (x - low).abs()
    extra = tt.fmod(distance, span)
    flips = tt.floor(distance / span)
    even = tt.remainder(flips, 2) == 0
    result: Tensor = tt.where(even, extra + low, span - extra + low)
    return result


def _source(x: Tensor, size: int, padding_mode: str, align: bool) -> Tensor:
    """Converts a coordinate in [-1, 1] to a position among `size` elements."""
    place = (x + 1) / 2 * (size - 1) if align else ((x + 1) * size - 1) / 2
    return _bounded(place, size, padding_mode, align)


def _bounded(place: Tensor, size: int, padding_mode: str, align: bool) -> Tensor:
    if padding_mode == "border":
        return place.clamp(0, size - 1)
    if padding_mode == "reflection":
        ends = (0, 2 * (size - 1)) if align else (-1, 2 * size - 1)
        return _reflect(place, *ends).clamp(0, size - 1)
    return place


def _rows(input: Tensor) -> Tensor:
    """The channels of each position as a row, one sample after the other, and then a row of zeros."""
    batch, channels = input.shape[:2]
    places = input.reshape((batch, channels, -1)).transpose(1, 2).reshape((-1, channels))
    zeros = tt.zeros((1, channels), dtype=input.dtype, device=input.device)
    rows: Tensor = tt.cat([places, zeros])
    return rows


def _take(rows: Tensor, places: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """The rows at integer positions (one tensor [N, ...] for each dimension); zeros for positions out of
    range."""
    inside, index = None, None
    for place, size in zip(places, shape, strict=True):
        fits = (place >= 0) & (place < size)
        inside = fits if inside is None else inside & fits
        at = tt.where(fits, place, tt.zeros_like(place)).to(tt.int64)
        index = at if index is None else index * size + at
    assert inside is not None and index is not None
    batch, area = index.shape[0], math.prod(shape)
    first = tt.arange(0, batch * area, area, device=index.device)
    index = index + first.reshape((batch, *[1] * (index.dim() - 1)))
    taken: Tensor = tt.index_select(rows, 0, tt.where(inside, index, batch * area).reshape((-1,)))
    return taken


def _channels_first(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Rearranges rows at positions of sizes [N, ...] to [N, C, ...]."""
    result: Tensor = rows.reshape((sizes[0], -1, rows.shape[1])).transpose(1, 2)
    return result.reshape((sizes[0], rows.shape[1], *sizes[1:]))


def _cubic_weights(t: Tensor) -> list[Tensor]:
    a = -0.75

    def far(x: Tensor) -> Tensor:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    def near(x: Tensor) -> Tensor:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Samples input [N, C, H, W] (or [N, C, D, H, W]) at the positions in grid, of shape [N, H', W', 2] (x,
    y) or [N, D', H', W', 3] (x, y, z), where -1 and 1 are the ends of the input: the result is [N, C, H',
    W'] or [N, C, D', H', W'].

    mode is bilinear, nearest, or bicubic (4-d). padding_mode says what is outside of the input: zeros, its
    border, or its reflection. With align_corners, -1 and 1 are the centres of the corner elements; without
    it, their outer corners.
    """
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ValueError(
            f"nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', "
            f"but got: '{mode}'"
        )
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(
            f"nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or "
            f"'reflection', but got: '{padding_mode}'"
        )
    spatial = input.dim() - 2
    if spatial not in (2, 3) or grid.dim() != input.dim() or grid.shape[-1] != spatial:
        raise RuntimeError(
            f"grid_sample: expected 4D or 5D input and a grid with as many dimensions that ends in "
            f"2 or 3 coordinates, got input of shape {list(input.shape)} and grid of shape "
            f"{list(grid.shape)}"
        )
    if input.shape[0] != grid.shape[0] or input.dtype != grid.dtype:
        raise RuntimeError(
            f"grid_sample: expected input and grid to have same batch size and dtype, got input "
            f"of shape {list(input.shape)} ({input.dtype}) and grid of shape {list(grid.shape)} "
            f"({grid.dtype})"
        )
    if mode == "bicubic" and spatial != 2:
        raise RuntimeError(
            f"grid_sample: bicubic interpolation only supports 4D input, got shape "
            f"{list(input.shape)}"
        )
    shape = tuple(input.shape[2:])
    if min(shape) == 0:
        raise RuntimeError(
            f"grid_sample: expected input to have non-empty spatial dimensions, got shape "
            f"{list(input.shape)}"
        )
    align = bool(align_corners)
    if grid.numel() == 0 or input.numel() == 0:
        return (input.sum() + grid.sum()).expand((*input.shape[:2], *grid.shape[1:-1])).clone()
    flat, sizes = _rows(input), grid.shape[:-1]
    last_first = [grid.select(-1, spatial - 1 - d) for d in range(spatial)]
    if mode == "bicubic":
        return _channels_first(_bicubic(flat, last_first, shape, padding_mode, align), sizes)
    places = [_source(x, n, padding_mode, align) for x, n in zip(last_first, shape, strict=True)]
    if mode == "nearest":
        found = _take(flat, [tt.round(p) for p in places], shape)
        return _channels_first(tied(found, last_first[0].reshape((-1, 1))), sizes)
    low = [tt.floor(p.detach()) for p in places]
    result: Tensor | None = None
    for corner in range(2**spatial):
        at, weight = [], None
        for d in range(spatial):
            high = corner >> (spatial - 1 - d) & 1
            at.append(low[d] + high)
            part = places[d] - low[d] if high else low[d] + 1 - places[d]
            weight = part if weight is None else weight * part
        assert weight is not None
        term = _take(flat, at, shape) * weight.reshape((-1, 1))
        result = term if result is None else result + term
    assert result is not None
    return _channels_first(result, sizes)


def _bicubic(
    flat: Tensor, coordinates: list[Tensor], shape: Sequence[int], padding_mode: str, align: bool
) -> Tensor:
    places = [_source(x, n, "zeros", align) for x, n in zip(coordinates, shape, strict=True)]
    low = [tt.floor(p.detach()) for p in places]
    weights = [_cubic_weights(p - q) for p, q in zip(places, low, strict=True)]
    result: Tensor | None = None
    for i in range(4):
        row: Tensor | None = None
        for j in range(4):
            at = [
                _bounded(low[d] + (step - 1), shape[d], padding_mode, align)
                for d, step in enumerate((i, j))
            ]
            # Reflected positions are on elements, or half-way between two if a dimension has only one
            # element.
            term = _take(flat, [tt.floor(a) for a in at], shape) * weights[1][j].reshape((-1, 1))
            row = term if row is None else row + term
        assert row is not None
        line = row * weights[0][i].reshape((-1, 1))
        result = line if result is None else result + line
    assert result is not None
    return result


# ---------------------------------------------------------------- windows as columns


def _parts(function: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
    """Applies a real linear function to the real and to the imaginary part."""
    return tt.complex(function(_ops.real(input)), function(_ops.imag(input)))


def unfold(
    input: Tensor, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
) -> Tensor:
    """The windows of input [N, C, H, W] (or [C, H, W]) as columns: [N, C * KH * KW, windows]."""
    options = [
        sizes("unfold", name, value, 2)
        for name, value in (
            ("kernel_size", kernel_size),
            ("dilation", dilation),
            ("padding", padding),
            ("stride", stride),
        )
    ]
    if input.dtype.is_complex:
        return _parts(lambda x: unfold(x, kernel_size, dilation, padding, stride), input)
    if input.dim() == 3:
        return _ops.im2col(input.unsqueeze(0), *options).squeeze(0)
    return _ops.im2col(input, *options)


def fold(
    input: Tensor,
    output_size: Size,
    kernel_size: Size,
    dilation: Size = 1,
    padding: Size = 0,
    stride: Size = 1,
) -> Tensor:
    """The adjoint of unfold: the columns [N, C * KH * KW, windows] are added at their positions in [N, C,
    *output_size]."""
    options = [
        sizes("fold", name, value, 2)
        for name, value in (
            ("output_size", output_size),
            ("kernel_size", kernel_size),
            ("dilation", dilation),
            ("padding", padding),
            ("stride", stride),
        )
    ]
    if input.dtype.is_complex:
        return _parts(lambda x: fold(x, output_size, kernel_size, dilation, padding, stride), input)
    if input.dim() == 2:
        return _ops.col2im(input.unsqueeze(0), *options).squeeze(0)
    return _ops.col2im(input, *options)


# ---------------------------------------------------------------- channels and pixels


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Rearranges [..., C * r * r, H, W] to [..., C, H * r, W * r], r = upscale_factor. Source: Shi et al.
    2016."""
    shape, r = tuple(input.shape), upscale_factor
    if len(shape) < 3:
        raise RuntimeError(
            f"pixel_shuffle expects input to have at least 3 dimensions, but got input with "
            f"{len(shape)} dimension(s), shape {list(shape)}"
        )
    if r <= 0 or shape[-3] % (r * r):
        raise RuntimeError(
            f"pixel_shuffle expects its input's 'channel' dimension to be divisible by the square "
            f"of upscale_factor, but input of shape {list(shape)} has {shape[-3]} channels and "
            f"upscale_factor is {r}"
        )
    lead, (channels, height, width) = shape[:-3], shape[-3:]
    n = len(lead)
    x = input.reshape((*lead, channels // (r * r), r, r, height, width))
    x = x.permute((*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return x.reshape((*lead, channels // (r * r), height * r, width * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Rearranges [..., C, H * r, W * r] to [..., C * r * r, H, W], r = downscale_factor."""
    shape, r = tuple(input.shape), downscale_factor
    if len(shape) < 3:
        raise RuntimeError(
            f"pixel_unshuffle expects input to have at least 3 dimensions, but got input with "
            f"{len(shape)} dimension(s), shape {list(shape)}"
        )
    if r <= 0 or shape[-1] % r or shape[-2] % r:
        raise RuntimeError(
            f"pixel_unshuffle expects height and width to be divisible by downscale_factor, but "
            f"input of shape {list(shape)} is not divisible by {r}"
        )
    lead, (channels, height, width) = shape[:-3], shape[-3:]
    n = len(lead)
    x = input.reshape((*lead, channels, height // r, r, width // r, r))
    x = x.permute((*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return x.reshape((*lead, channels * r * r, height // r, width // r))


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Permutes the channels (dimension 1): viewed as [groups, C / groups], they are transposed to [C /
    groups, groups]."""
    shape = tuple(input.shape)
    if len(shape) < 3:
        raise RuntimeError(
            f"channel_shuffle expects input with > 2 dims, but got input with sizes {list(shape)}"
        )
    if groups <= 0 or shape[1] % groups:
        raise RuntimeError(
            f"channel_shuffle: number of channels must be divisible by groups. Got {shape[1]} "
            f"channels and {groups} groups."
        )
    x = input.reshape((shape[0], groups, shape[1] // groups, *shape[2:]))
    return x.transpose(1, 2).reshape(shape)
