"""The ONNX operators Resize, Upsample and GridSample. A resize is computed dimension by dimension: as a
product with a matrix of weights, or as a selection of elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _api as tt, nn
from .._core import Tensor
from ._file import OnnxError
from ._table import Host, Ints, op
from ._values import bounded

F = nn.functional

Array = np.ndarray[Any, Any]


def _sources(mode: str, count: int, scale: float, have: int, roi: tuple[float, float]) -> Array:
    """The position in the input from which each of `count` elements is taken."""
    at: Array = np.arange(count, dtype=np.float64)
    whole = scale * have
    if mode == "align_corners":
        return at * ((have - 1) / (whole - 1)) if whole != 1 else np.zeros(count)
    if mode == "asymmetric":
        return at / scale
    if mode == "tf_crop_and_resize":
        begin, end = roi
        step = (end - begin) * (have - 1)
        offset: Array = at * step / (whole - 1) if whole != 1 else np.full(count, step / 2)
        return begin * (have - 1) + offset
    if mode == "pytorch_half_pixel" and whole == 1:
        return np.full(count, -0.5)
    if mode == "half_pixel_symmetric":
        return have / 2 * (1 - count / whole) + (at + 0.5) / scale - 0.5
    if mode not in ("half_pixel", "pytorch_half_pixel"):
        raise OnnxError(f"unknown coordinate_transformation_mode {mode!r}")
    return (at + 0.5) / scale - 0.5


def _nearest(at: Array, mode: str) -> Array:
    functions: dict[str, Callable[[Array], Array]] = {
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    if mode not in functions:
        raise OnnxError(f"unknown nearest_mode {mode!r}")
    return functions[mode](at)


def _kernel(mode: str, a: float, distance: Array) -> Array:
    x = np.abs(distance)
    if mode == "linear":
        tent: Array = np.clip(1 - x, 0, 1)
        return tent
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    found: Array = np.where(x <= 1, near, np.where(x < 2, far, 0.0))
    return found


def _weights(
    at: Array, have: int, mode: str, a: float, scale: float, antialias: bool, exclude: bool
) -> Array:
    """The matrix that computes the new elements from the old ones."""
    shrink = min(scale, 1.0) if antialias else 1.0
    reach = math.ceil((1 if mode == "linear" else 2) / shrink) + 1
    places = np.floor(at)[:, None].astype(np.int64) + np.arange(-reach, reach + 1)
    weights = _kernel(mode, a, (places - at[:, None]) * shrink)
    if exclude:
        weights = np.where((places < 0) | (places >= have), 0.0, weights)
    if exclude or antialias:
        weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((len(at), have))
    np.add.at(matrix, (np.arange(len(at))[:, None], np.clip(places, 0, have - 1)), weights)
    return matrix


@op("Resize", since=11)
def resize(
    X: Tensor,
    roi: Host | None = None,
    scales: Host | None = None,
    sizes: Ints | None = None,
    *,
    antialias: Any = 0,
    axes: Ints | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: Any = -0.75,
    exclude_outside: Any = 0,
    extrapolation_value: Any = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    chosen = list(range(X.dim())) if axes is None else [a % X.dim() for a in axes]
    have = [X.shape[axis] for axis in chosen]
    if sizes:
        factors = [s / n for s, n in zip(sizes, have)]
        if keep_aspect_ratio_policy != "stretch":
            one = (min if keep_aspect_ratio_policy == "not_larger" else max)(factors)
            factors, sizes = [one] * len(have), [int(one * n + 0.5) for n in have]
    elif scales is not None and scales.size:
        factors = [float(s) for s in scales]
        sizes = [int(math.floor(s * n)) for s, n in zip(factors, have)]
    else:
        raise OnnxError("neither scales nor sizes are given")
    result, dtype = X, X.dtype
    outside: Tensor | None = None
    for i, axis in enumerate(chosen):
        window = (0.0, 1.0) if roi is None or not roi.size else (float(roi[i]), float(roi[i + len(chosen)]))
        crop = coordinate_transformation_mode == "tf_crop_and_resize"
        if sizes[i] == have[i] and factors[i] == 1 and not (crop and window != (0.0, 1.0)):
            continue
        bounded(sizes[i] if mode == "nearest" else sizes[i] * have[i])
        at = _sources(coordinate_transformation_mode, sizes[i], factors[i], have[i], window)
        if crop:
            beyond = tt.tensor((at < 0) | (at > have[i] - 1)).reshape([-1] + [1] * (X.dim() - 1 - axis))
            outside = beyond if outside is None else outside | beyond
        if mode == "nearest":
            places = np.clip(_nearest(at, nearest_mode), 0, have[i] - 1).astype(np.int64)
            result = result.index_select(axis, tt.tensor(places))
            continue
        if mode not in ("linear", "cubic"):
            raise OnnxError(f"unknown mode {mode!r}")
        matrix = _weights(
            at, have[i], mode, cubic_coeff_a, factors[i], bool(antialias), bool(exclude_outside)
        )
        wide = result if result.dtype in (tt.float32, tt.float64) else result.float()
        weights = tt.tensor(matrix).to(wide.dtype)
        result = tt.matmul(wide.movedim(axis, -1), weights.t()).movedim(-1, axis)
    if outside is not None:
        result = tt.where(outside, tt.full([], extrapolation_value, dtype=result.dtype), result)
    if not dtype.is_floating_point and result.is_floating_point():
        limits = tt.iinfo(dtype)
        result = result.clamp(limits.min, limits.max)
    return result.to(dtype)


@op("Resize", since=10)
@op("Upsample", since=7)
def upsample(X: Tensor, scales: Host | None = None, *, mode: str = "nearest") -> Any:
    return resize(
        X,
        None,
        np.asarray(scales),
        None,
        coordinate_transformation_mode="asymmetric",
        mode="nearest" if mode == "nearest" else "linear",
        nearest_mode="floor",
    )


@op("GridSample")
def grid_sample(
    X: Tensor, grid: Tensor, *, align_corners: Any = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    if X.dim() == 5 and mode == "bicubic":
        raise OnnxError("a cubic GridSample of volumes is not supported")
    return F.grid_sample(X, grid.to(X.dtype), mode, padding_mode, bool(align_corners))


@op("AffineGrid")
def affine_grid(theta: Tensor, size: Ints, *, align_corners: Any = 0) -> Tensor:
    return F.affine_grid(theta, size, bool(align_corners))
