"""Pooling layers: each stores the options of the function of the same name in nn.functional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._tensors.tensor import Tensor
from .. import functional as F
from ..functional._sizes import Size, sizes
from ..module import Module

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
]


class _MaxPool(Module):
    _spatial: int

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Any:
        run = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[self._spatial - 1]
        return run(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            ceil_mode=self.ceil_mode,
            return_indices=self.return_indices,
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The largest element of each window of [N, C, L]; stride defaults to kernel_size."""

    _spatial = 1


class MaxPool2d(_MaxPool):
    """The largest element of each window of [N, C, H, W]; stride defaults to kernel_size.

    >>> tt.nn.MaxPool2d(2)(tt.ones(1, 3, 8, 8)).shape
    teletensor.Size([1, 3, 4, 4])
    """

    _spatial = 2


class MaxPool3d(_MaxPool):
    """The largest element of each window of [N, C, D, H, W]; stride defaults to kernel_size."""

    _spatial = 3


class _MaxUnpool(Module):
    _spatial: int

    def __init__(self, kernel_size: Size, stride: Size | None = None, padding: Size = 0) -> None:
        super().__init__()
        name, n = type(self).__name__, self._spatial
        self.kernel_size = sizes(name, "kernel_size", kernel_size, n)
        self.stride = sizes(name, "stride", kernel_size if stride is None else stride, n)
        self.padding = sizes(name, "padding", padding, n)

    def forward(
        self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None
    ) -> Tensor:
        run = (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)[self._spatial - 1]
        return run(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """The partial inverse of MaxPool1d: puts its results at their indices, and zeros elsewhere."""

    _spatial = 1


class MaxUnpool2d(_MaxUnpool):
    """The partial inverse of MaxPool2d: puts its results at their indices, and zeros elsewhere."""

    _spatial = 2


class MaxUnpool3d(_MaxUnpool):
    """The partial inverse of MaxPool3d: puts its results at their indices, and zeros elsewhere."""

    _spatial = 3


class AvgPool1d(Module):
    """The mean of each window of [N, C, L]; stride defaults to kernel_size."""

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = sizes("AvgPool1d", "kernel_size", kernel_size, 1)
        self.stride = sizes("AvgPool1d", "stride", kernel_size if stride is None else stride, 1)
        self.padding = sizes("AvgPool1d", "padding", padding, 1)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """The mean of each window of [N, C, H, W]; stride defaults to kernel_size. Sums are divided by
    divisor_override if it is given."""

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool3d(AvgPool2d):
    """The mean of each window of [N, C, D, H, W]; stride defaults to kernel_size."""

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool3d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class _FractionalMaxPool(Module):
    _spatial: int
    _random_samples: Tensor | None

    def __init__(
        self,
        kernel_size: Size,
        output_size: Size | None = None,
        output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> None:
        super().__init__()
        name, n = type(self).__name__, self._spatial
        self.kernel_size = sizes(name, "kernel_size", kernel_size, n)
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.output_size = (
            None if output_size is None else sizes(name, "output_size", output_size, n)
        )
        self.output_ratio = (
            (output_ratio,) * n if isinstance(output_ratio, float) else output_ratio
        )
        if output_size is None and output_ratio is None:
            raise ValueError(
                f"{name} requires specifying either an output size, or a pooling ratio"
            )
        if output_size is not None and output_ratio is not None:
            raise ValueError("only one of output_size and output_ratio may be specified")
        if self.output_ratio is not None and not all(0 < r < 1 for r in self.output_ratio):
            raise ValueError(
                f"output_ratio must be between 0 and 1 (got {self.output_ratio})"
            )

    def forward(self, input: Tensor) -> Any:
        run = F.fractional_max_pool2d if self._spatial == 2 else F.fractional_max_pool3d
        return run(
            input,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            _random_samples=self._random_samples,
        )


class FractionalMaxPool2d(_FractionalMaxPool):
    """The largest elements of windows at pseudo-random distances. Source: Graham 2014."""

    _spatial = 2


class FractionalMaxPool3d(_FractionalMaxPool):
    """FractionalMaxPool2d in three dimensions."""

    _spatial = 3


class _LPPool(Module):
    _spatial: int

    def __init__(
        self,
        norm_type: float,
        kernel_size: Size,
        stride: Size | None = None,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        run = (F.lp_pool1d, F.lp_pool2d, F.lp_pool3d)[self._spatial - 1]
        return run(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPool):
    """(sum of x ** norm_type) ** (1 / norm_type) over each window of [N, C, L]."""

    _spatial = 1


class LPPool2d(_LPPool):
    """(sum of x ** norm_type) ** (1 / norm_type) over each window of [N, C, H, W]."""

    _spatial = 2


class LPPool3d(_LPPool):
    """(sum of x ** norm_type) ** (1 / norm_type) over each window of [N, C, D, H, W]."""

    _spatial = 3


class _AdaptiveMaxPool(Module):
    _spatial: int

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size = output_size
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        run = (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[
            self._spatial - 1
        ]
        return run(input, self.output_size, self.return_indices)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest elements of windows that are chosen so that the result has output_size elements."""

    _spatial = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest elements of windows that are chosen so that the result [..., H', W'] has output_size."""

    _spatial = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest elements of windows that are chosen so that the result [..., D', H', W'] has
    output_size."""

    _spatial = 3


class _AdaptiveAvgPool(Module):
    _spatial: int

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        run = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[
            self._spatial - 1
        ]
        return run(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The means of windows that are chosen so that the result has output_size elements."""

    _spatial = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The means of windows that are chosen so that the result [..., H', W'] has output_size; None keeps a
    size."""

    _spatial = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """The means of windows that are chosen so that the result [..., D', H', W'] has output_size; None keeps
    a size."""

    _spatial = 3
