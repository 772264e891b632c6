"""Pooling: the maximum or the mean of windows over the last one to three dimensions."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from ... import _api as tt
from ..._names import ops as _ops
from ..._tensors.tensor import Tensor
from ._sizes import Size, batched, sizes

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_with_indices",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "fractional_max_pool2d",
    "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d",
    "fractional_max_pool3d_with_indices",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool2d_with_indices",
    "max_pool3d",
    "max_pool3d_with_indices",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
]

_Pair = tuple[Tensor, Tensor]


def _max_pool(
    spatial: int,
    input: Tensor,
    kernel_size: Size,
    stride: Size | None,
    padding: Size,
    dilation: Size,
    ceil_mode: bool,
) -> _Pair:
    name = f"max_pool{spatial}d"
    kernel = sizes(name, "kernel_size", kernel_size, spatial)
    given = stride is not None and stride != () and stride != []
    steps = sizes(name, "stride", stride, spatial) if given else kernel
    edges = sizes(name, "padding", padding, spatial)
    gaps = sizes(name, "dilation", dilation, spatial)
    pair: _Pair = batched(
        name, input, spatial, lambda x: _ops.max_pool(x, kernel, steps, edges, gaps, ceil_mode)
    )
    return pair


def max_pool1d_with_indices(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> _Pair:
    """max_pool1d, and the indices of the largest elements."""
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool2d_with_indices(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> _Pair:
    """max_pool2d, and the indices of the largest elements in the flattened plane."""
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool3d_with_indices(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> _Pair:
    """max_pool3d, and the indices of the largest elements in the flattened volume."""
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool1d(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window of input [N, C, L] or [C, L]; stride defaults to kernel_size. With
    return_indices also its index. With ceil_mode the last window may extend beyond the input."""
    pair = _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode)
    return pair if return_indices else pair[0]


def max_pool2d(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window of input [N, C, H, W] or [C, H, W]; stride defaults to
    kernel_size. With return_indices also its index. With ceil_mode the last window may extend beyond the
    input."""
    pair = _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode)
    return pair if return_indices else pair[0]


def max_pool3d(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window of input [N, C, D, H, W] or [C, D, H, W]; stride defaults to
    kernel_size. With return_indices also its index. With ceil_mode the last window may extend beyond the
    input."""
    pair = _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode)
    return pair if return_indices else pair[0]


def _unpool(
    spatial: int,
    input: Tensor,
    indices: Tensor,
    kernel_size: Size,
    stride: Size | None,
    padding: Size,
    output_size: Sequence[int] | None,
) -> Tensor:
    name = f"max_unpool{spatial}d"
    kernel = sizes(name, "kernel_size", kernel_size, spatial)
    steps = kernel if stride is None else sizes(name, "stride", stride, spatial)
    edges = sizes(name, "padding", padding, spatial)
    if any(s <= 0 for s in steps):
        raise RuntimeError(f"{name}: strides should be greater than zero, but got stride: {steps}")
    default = tuple(
        (n - 1) * s + k - 2 * p
        for n, s, k, p in zip(input.shape[-spatial:], steps, kernel, edges, strict=False)
    )
    if output_size is None:
        size = default
    else:
        size = tuple(output_size)[-spatial:] if len(output_size) > spatial else tuple(output_size)
        if len(size) != spatial:
            raise ValueError(
                f"output_size should be a sequence containing {spatial} or {spatial + 2} "
                f"elements, but it has a length of '{len(output_size)}'"
            )
        for d in range(spatial):
            low, high = default[d] - steps[d], default[d] + steps[d]
            if not low < size[d] < high:
                raise ValueError(
                    f"invalid output_size {list(output_size)} (dim {d} must be between {low} and "
                    f"{high})"
                )
    if tuple(input.shape) != tuple(indices.shape):
        raise RuntimeError(
            f"{name}: expected shape of indices to be the same as that of the input "
            f"({list(input.shape)}), but got {list(indices.shape)}"
        )
    if indices.dim() == spatial + 1:
        indices = indices.unsqueeze(0)
    result: Tensor = batched(
        name, input, spatial, lambda x: _ops.max_unpool(x, indices, size, False)
    )
    return result


def max_unpool1d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The partial inverse of max_pool1d: puts its results at their indices, and zeros elsewhere."""
    return _unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The partial inverse of max_pool2d: puts its results at their indices, and zeros elsewhere."""
    return _unpool(2, input, indices, kernel_size, stride, padding, output_size)


def max_unpool3d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The partial inverse of max_pool3d: puts its results at their indices, and zeros elsewhere."""
    return _unpool(3, input, indices, kernel_size, stride, padding, output_size)


def _avg_pool(
    spatial: int,
    input: Tensor,
    kernel_size: Size,
    stride: Size | None,
    padding: Size,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None = None,
) -> Tensor:
    name = f"avg_pool{spatial}d"
    kernel = sizes(name, "kernel_size", kernel_size, spatial)
    given = stride is not None and stride != () and stride != []
    steps = sizes(name, "stride", stride, spatial) if given else kernel
    edges = sizes(name, "padding", padding, spatial)
    result: Tensor = batched(
        name,
        input,
        spatial,
        lambda x: _ops.avg_pool(
            x, kernel, steps, edges, ceil_mode, count_include_pad, divisor_override
        ),
    )
    return result


def avg_pool1d(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of input [N, C, L] or [C, L]; stride defaults to kernel_size."""
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of input [N, C, H, W] or [C, H, W]; stride defaults to kernel_size. Sums are
    divided by divisor_override if it is given."""
    return _avg_pool(
        2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def avg_pool3d(
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of input [N, C, D, H, W] or [C, D, H, W]; stride defaults to kernel_size.
    Sums are divided by divisor_override if it is given."""
    return _avg_pool(
        3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def _output(name: str, input: Tensor, output_size: Any, spatial: int) -> tuple[int, ...]:
    """The output size for each dimension; None means the input's own size."""
    if isinstance(output_size, int) or output_size is None:
        output_size = (output_size,) * spatial
    wanted = tuple(output_size)
    if len(wanted) == 1:
        wanted *= spatial
    if len(wanted) != spatial or input.dim() < spatial:
        raise RuntimeError(
            f"{name}: output_size must be {spatial} numbers, got {list(wanted)} for input of shape "
            f"{list(input.shape)}"
        )
    own = tuple(input.shape[-spatial:])
    return tuple(o if w is None else operator.index(w) for w, o in zip(wanted, own, strict=True))


def _adaptive_avg(spatial: int, input: Tensor, output_size: Any) -> Tensor:
    name = f"adaptive_avg_pool{spatial}d"
    wanted = _output(name, input, output_size, spatial)
    result: Tensor = batched(name, input, spatial, lambda x: _ops.adaptive_avg_pool(x, wanted))
    return result


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """The means of windows that are chosen so that the result has output_size elements."""
    return _adaptive_avg(1, input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """The means of windows that are chosen so that the result [..., H', W'] has output_size; None keeps a
    size."""
    return _adaptive_avg(2, input, output_size)


def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:
    """The means of windows that are chosen so that the result [..., D', H', W'] has output_size; None keeps
    a size."""
    return _adaptive_avg(3, input, output_size)


def _adaptive_max(spatial: int, input: Tensor, output_size: Any) -> _Pair:
    name = f"adaptive_max_pool{spatial}d"
    wanted = _output(name, input, output_size, spatial)
    pair: _Pair = batched(name, input, spatial, lambda x: _ops.adaptive_max_pool(x, wanted))
    return pair


def adaptive_max_pool1d_with_indices(
    input: Tensor, output_size: Any, return_indices: bool = False
) -> _Pair:
    """adaptive_max_pool1d, and the indices of the largest elements."""
    return _adaptive_max(1, input, output_size)


def adaptive_max_pool2d_with_indices(
    input: Tensor, output_size: Any, return_indices: bool = False
) -> _Pair:
    """adaptive_max_pool2d, and the indices of the largest elements."""
    return _adaptive_max(2, input, output_size)


def adaptive_max_pool3d_with_indices(
    input: Tensor, output_size: Any, return_indices: bool = False
) -> _Pair:
    """adaptive_max_pool3d, and the indices of the largest elements."""
    return _adaptive_max(3, input, output_size)


def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest elements of windows that are chosen so that the result has output_size elements."""
    pair = _adaptive_max(1, input, output_size)
    return pair if return_indices else pair[0]


def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest elements of windows that are chosen so that the result [..., H', W'] has output_size."""
    pair = _adaptive_max(2, input, output_size)
    return pair if return_indices else pair[0]


def adaptive_max_pool3d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The largest elements of windows that are chosen so that the result [..., D', H', W'] has
    output_size."""
    pair = _adaptive_max(3, input, output_size)
    return pair if return_indices else pair[0]


def _fractional(
    spatial: int,
    input: Tensor,
    kernel_size: Size,
    output_size: Any,
    output_ratio: Any,
    samples: Tensor | None,
) -> _Pair:
    name = f"fractional_max_pool{spatial}d"
    if output_size is None and output_ratio is None:
        raise ValueError(f"{name} requires specifying either an output_size or an output_ratio")
    kernel = sizes(name, "kernel_size", kernel_size, spatial)
    if input.dim() not in (spatial + 1, spatial + 2):
        raise RuntimeError(
            f"{name}: expected {spatial + 1}D or {spatial + 2}D input, got shape "
            f"{list(input.shape)}"
        )
    if output_size is None:
        ratio = (output_ratio,) * spatial if isinstance(output_ratio, float) else output_ratio
        wanted = tuple(
            int(n * r) for n, r in zip(input.shape[-spatial:], ratio, strict=True)
        )
    else:
        wanted = sizes(name, "output_size", output_size, spatial)
    batch = 1 if input.dim() == spatial + 1 else input.shape[0]
    if samples is None:
        channels = input.shape[-spatial - 1]
        samples = tt.rand((batch, channels, spatial), dtype=input.dtype, device=input.device)
    chosen = samples[:batch] if samples.dim() and samples.shape[0] > batch else samples
    pair: _Pair = batched(
        name, input, spatial, lambda x: _ops.fractional_max_pool(x, chosen, kernel, wanted)
    )
    return pair


def fractional_max_pool2d_with_indices(
    input: Tensor,
    kernel_size: Size,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> _Pair:
    """fractional_max_pool2d, and the indices of the largest elements."""
    return _fractional(2, input, kernel_size, output_size, output_ratio, _random_samples)


def fractional_max_pool3d_with_indices(
    input: Tensor,
    kernel_size: Size,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> _Pair:
    """fractional_max_pool3d, and the indices of the largest elements."""
    return _fractional(3, input, kernel_size, output_size, output_ratio, _random_samples)


def fractional_max_pool2d(
    input: Tensor,
    kernel_size: Size,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """The largest elements of windows at pseudo-random distances, chosen so that the result has
    output_size, or the input's size times output_ratio. Source: Graham 2014."""
    pair = _fractional(2, input, kernel_size, output_size, output_ratio, _random_samples)
    return pair if return_indices else pair[0]


def fractional_max_pool3d(
    input: Tensor,
    kernel_size: Size,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """fractional_max_pool2d in three dimensions."""
    pair = _fractional(3, input, kernel_size, output_size, output_ratio, _random_samples)
    return pair if return_indices else pair[0]


def _lp_pool(
    spatial: int,
    input: Tensor,
    norm_type: float,
    kernel_size: Size,
    stride: Size | None,
    ceil_mode: bool,
) -> Tensor:
    name = f"lp_pool{spatial}d"
    if norm_type == 0:
        raise ValueError(f"{name}: norm_type must not be 0")
    if math.isinf(norm_type):  # the largest or the smallest magnitude
        sign = math.copysign(1.0, norm_type)
        return _max_pool(spatial, sign * input.abs(), kernel_size, stride, 0, 1, ceil_mode)[0] * sign
    kernel = sizes(name, "kernel_size", kernel_size, spatial)
    count = 1
    for k in kernel:
        count *= k
    mean = _avg_pool(spatial, input**norm_type, kernel, stride, 0, ceil_mode, True)
    return (tt.sign(mean) * _ops.relu(tt.abs(mean)) * count) ** (1.0 / norm_type)


def lp_pool1d(
    input: Tensor,
    norm_type: float,
    kernel_size: Size,
    stride: Size | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """(sum of x ** norm_type) ** (1 / norm_type) over each window."""
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(
    input: Tensor,
    norm_type: float,
    kernel_size: Size,
    stride: Size | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """(sum of x ** norm_type) ** (1 / norm_type) over each window."""
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(
    input: Tensor,
    norm_type: float,
    kernel_size: Size,
    stride: Size | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """(sum of x ** norm_type) ** (1 / norm_type) over each window."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)
