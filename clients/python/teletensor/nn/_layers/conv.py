"""Convolution layers and transposed convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ... import _api as tt
from ..._tensors.tensor import Tensor
from .. import functional as F, init
from ..functional._sizes import Size, sizes
from ..module import Module
from ..parameter import Parameter

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
]


class _ConvNd(Module):
    weight: Parameter
    bias: Parameter | None
    _spatial = 0  # the number of spatial dimensions; a class of a program has that of its kernel_size

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size,
        padding: Size | str,
        dilation: Size,
        transposed: bool,
        output_padding: Size,
        groups: int,
        bias: bool,
        padding_mode: str,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if not self._spatial:
            self._spatial = 1 if isinstance(kernel_size, int) else len(kernel_size)
        name, n = type(self).__name__, self._spatial
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups != 0:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups != 0:
            raise ValueError("out_channels must be divisible by groups")
        modes = ("zeros", "reflect", "replicate", "circular")
        if padding_mode not in modes:
            raise ValueError(
                f"padding_mode must be one of {list(modes)}, but got padding_mode='{padding_mode}'"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = sizes(name, "kernel_size", kernel_size, n)
        self.stride = sizes(name, "stride", stride, n)
        self.padding: tuple[int, ...] | str
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(
                    f"Invalid padding string {padding!r}, should be one of ('same', 'valid')"
                )
            if padding == "same" and any(s != 1 for s in self.stride):
                raise ValueError("padding='same' is not supported for strided convolutions")
            self.padding = padding
        else:
            self.padding = sizes(name, "padding", padding, n)
        self.dilation = sizes(name, "dilation", dilation, n)
        self.transposed = transposed
        self.output_padding = sizes(name, "output_padding", output_padding, n)
        self.groups = groups
        self.padding_mode = padding_mode
        self._reversed_padding_repeated_twice = self._around()
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        shape = (first, second // groups, *self.kernel_size)
        self.weight = Parameter(tt.empty(shape, device=device, dtype=dtype))
        if bias:
            self.bias = Parameter(tt.empty(out_channels, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def _around(self) -> list[int]:
        """The padding argument of F.pad for a padding_mode other than zeros. PyTorch keeps it in
        _reversed_padding_repeated_twice, which programs read."""
        edges: list[int] = []
        for d in reversed(range(self._spatial)):
            if self.padding == "same":
                total = self.dilation[d] * (self.kernel_size[d] - 1)
                edges += [total // 2, total - total // 2]
            elif self.padding == "valid":
                edges += [0, 0]
            else:
                edges += [int(self.padding[d])] * 2
        return edges

    def reset_parameters(self) -> None:
        """Sets new random initial values, uniform in +-1/sqrt(fan-in)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in = self.weight.shape[1] * math.prod(self.kernel_size)
            if fan_in != 0:
                bound = 1 / math.sqrt(fan_in)
                init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        n = self._spatial
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )
        if self.padding != (0,) * n:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * n:
            text += f", dilation={self.dilation}"
        if self.output_padding != (0,) * n:
            text += f", output_padding={self.output_padding}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class _Conv(_ConvNd):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, False, 0, groups, bias,
            padding_mode, device, dtype,
        )

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution with given weights, which programs call from their own forward or override."""
        padding: Size | str = self.padding
        if self.padding_mode != "zeros":
            edges = self._reversed_padding_repeated_twice
            input, padding = F.pad(input, edges, mode=self.padding_mode), 0
        run = (F.conv1d, F.conv2d, F.conv3d)[self._spatial - 1]
        return run(input, weight, bias, self.stride, padding, self.dilation, self.groups)


class Conv1d(_Conv):
    """Cross-correlation of input [N, C, L] with weight [out_channels, in_channels / groups,
    kernel_size], plus bias [out_channels].

    >>> tt.nn.Conv1d(3, 8, 5, padding="same")(tt.ones(2, 3, 20)).shape
    teletensor.Size([2, 8, 20])
    """

    _spatial = 1


class Conv2d(_Conv):
    """Cross-correlation of input [N, C, H, W] with weight [out_channels, in_channels / groups,
    KH, KW], plus bias [out_channels].

    >>> tt.nn.Conv2d(3, 8, 3, stride=2, padding=1)(tt.ones(2, 3, 28, 28)).shape
    teletensor.Size([2, 8, 14, 14])
    """

    _spatial = 2


class Conv3d(_Conv):
    """Cross-correlation of input [N, C, D, H, W] with weight [out_channels, in_channels / groups,
    KD, KH, KW], plus bias [out_channels]."""

    _spatial = 3


class _ConvTranspose(_ConvNd):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(
                f'Only "zeros" padding mode is supported for {type(self).__name__}'
            )
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, True, output_padding,
            groups, bias, padding_mode, device, dtype,
        )

    def _output_padding(
        self,
        input: Tensor,
        output_size: Sequence[int] | None,
        stride: Sequence[int],
        padding: Sequence[int],
        kernel_size: Sequence[int],
        num_spatial_dims: int,
        dilation: Sequence[int] | None = None,
    ) -> tuple[int, ...]:
        """The output_padding that results in output_size. Programs with a forward of their own call it."""
        if output_size is None:
            return self.output_padding
        n = num_spatial_dims
        batched = input.dim() == n + 2
        wanted = list(output_size)
        if len(wanted) == n + (2 if batched else 1):
            wanted = wanted[-n:]
        if len(wanted) != n:
            raise ValueError(
                f"{type(self).__name__}: for {input.dim()}D input, output_size must have {n} or "
                f"{input.dim()} elements (got {len(output_size)})"
            )
        apart = (1,) * n if dilation is None else dilation
        least = [
            (input.shape[d - n] - 1) * stride[d] - 2 * padding[d] + apart[d] * (kernel_size[d] - 1) + 1
            for d in range(n)
        ]
        most = [low + s - 1 for low, s in zip(least, stride, strict=True)]
        if any(not low <= w <= high for low, w, high in zip(least, wanted, most, strict=True)):
            raise ValueError(
                f"requested an output size of {list(output_size)}, but valid sizes range from "
                f"{least} to {most} (for an input of {list(input.shape[-n:])})"
            )
        return tuple(w - low for w, low in zip(wanted, least, strict=True))

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        assert not isinstance(self.padding, str)
        extra = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, self._spatial, self.dilation
        )
        run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self._spatial - 1]
        return run(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups,
            self.dilation,
        )


class ConvTranspose1d(_ConvTranspose):
    """The adjoint of Conv1d: weight [in_channels, out_channels / groups, kernel_size]."""

    _spatial = 1


class ConvTranspose2d(_ConvTranspose):
    """The adjoint of Conv2d: weight [in_channels, out_channels / groups, KH, KW].

    >>> tt.nn.ConvTranspose2d(8, 3, 4, stride=2, padding=1)(tt.ones(2, 8, 7, 7)).shape
    teletensor.Size([2, 3, 14, 14])
    """

    _spatial = 2


class ConvTranspose3d(_ConvTranspose):
    """The adjoint of Conv3d: weight [in_channels, out_channels / groups, KD, KH, KW]."""

    _spatial = 3
