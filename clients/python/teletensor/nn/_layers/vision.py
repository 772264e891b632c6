"""Layers for padding, upsampling, pixel rearrangement and windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._tensors.tensor import Tensor
from .. import functional as F
from ..functional._sizes import Size
from ..module import Module

__all__ = [
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Fold",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Unfold",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]


class _Pad(Module):
    """Pads the last dimensions; padding is one number, or (left, right, top, bottom, ...)."""

    _spatial: int
    _mode = "constant"
    value: float | None = None

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        count = 2 * self._spatial
        self.padding = (padding,) * count if isinstance(padding, int) else tuple(padding)
        if len(self.padding) != count:
            raise ValueError(f"{type(self).__name__}: padding needs {count} numbers, got {padding}")

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self._mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """Pads the last dimension with `value`."""

    _spatial = 1


class ConstantPad2d(_ConstantPad):
    """Pads the last two dimensions with `value`."""

    _spatial = 2


class ConstantPad3d(_ConstantPad):
    """Pads the last three dimensions with `value`."""

    _spatial = 3


class _ZeroPad(_Pad):
    value = 0.0


class ZeroPad1d(_ZeroPad):
    """Pads the last dimension with zeros."""

    _spatial = 1


class ZeroPad2d(_ZeroPad):
    """Pads the last two dimensions with zeros."""

    _spatial = 2


class ZeroPad3d(_ZeroPad):
    """Pads the last three dimensions with zeros."""

    _spatial = 3


class _ReflectionPad(_Pad):
    _mode = "reflect"


class ReflectionPad1d(_ReflectionPad):
    """Pads the last dimension with its reflection; the edge is not repeated."""

    _spatial = 1


class ReflectionPad2d(_ReflectionPad):
    """Pads the last two dimensions with their reflection; the edges are not repeated."""

    _spatial = 2


class ReflectionPad3d(_ReflectionPad):
    """Pads the last three dimensions with their reflection; the edges are not repeated."""

    _spatial = 3


class _ReplicationPad(_Pad):
    _mode = "replicate"


class ReplicationPad1d(_ReplicationPad):
    """Pads the last dimension with its edge elements."""

    _spatial = 1


class ReplicationPad2d(_ReplicationPad):
    """Pads the last two dimensions with their edge elements."""

    _spatial = 2


class ReplicationPad3d(_ReplicationPad):
    """Pads the last three dimensions with their edge elements."""

    _spatial = 3


class _CircularPad(_Pad):
    _mode = "circular"

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() not in (self._spatial + 1, self._spatial + 2):
            raise ValueError(
                f"expected {self._spatial + 1}D or {self._spatial + 2}D input "
                f"(got {input.dim()}D input)"
            )
        return super().forward(input)


class CircularPad1d(_CircularPad):
    """Pads the last dimension with elements from its other end."""

    _spatial = 1


class CircularPad2d(_CircularPad):
    """Pads the last two dimensions with elements from their other ends."""

    _spatial = 2


class CircularPad3d(_CircularPad):
    """Pads the last three dimensions with elements from their other ends."""

    _spatial = 3


class Upsample(Module):
    """Applies nn.functional.interpolate, to `size` or by scale_factor."""

    def __init__(
        self,
        size: Size | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.name = type(self).__name__
        self.size = size
        self.scale_factor: Any
        if isinstance(scale_factor, (int, float)) or scale_factor is None:
            self.scale_factor = float(scale_factor) if scale_factor else None
        else:
            self.scale_factor = tuple(float(f) for f in scale_factor)
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.interpolate(
            input,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            recompute_scale_factor=self.recompute_scale_factor,
        )

    def extra_repr(self) -> str:
        if self.scale_factor is not None:
            text = f"scale_factor={self.scale_factor!r}"
        else:
            text = f"size={self.size!r}"
        return f"{text}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Upsample with mode="nearest" for inputs [N, C, H, W]."""

    def __init__(
        self, size: Size | None = None, scale_factor: float | Sequence[float] | None = None
    ) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """Upsample with mode="bilinear" and align_corners=True for inputs [N, C, H, W]."""

    def __init__(
        self, size: Size | None = None, scale_factor: float | Sequence[float] | None = None
    ) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)


class PixelShuffle(Module):
    """Rearranges [..., C * r * r, H, W] to [..., C, H * r, W * r], r = upscale_factor. Source: Shi et al.
    2016."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Rearranges [..., C, H * r, W * r] to [..., C * r * r, H, W], r = downscale_factor."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Permutes the channels: viewed as [groups, C / groups], they are transposed to [C / groups,
    groups]."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Unfold(Module):
    """The windows of [N, C, H, W] as columns: [N, C * KH * KW, windows]."""

    def __init__(
        self, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, "
            f"stride={self.stride}"
        )


class Fold(Module):
    """The adjoint of Unfold: the columns [N, C * KH * KW, windows] are added at their positions in [N, C,
    *output_size]."""

    def __init__(
        self,
        output_size: Size,
        kernel_size: Size,
        dilation: Size = 1,
        padding: Size = 0,
        stride: Size = 1,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def forward(self, input: Tensor) -> Tensor:
        return F.fold(
            input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )

    def extra_repr(self) -> str:
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, "
            f"dilation={self.dilation}, padding={self.padding}, stride={self.stride}"
        )
