"""Convolutions and transposed convolutions in one to three dimensions."""

from __future__ import annotations

from typing import Any

from ..._names import ops as _ops
from ..._tensors.tensor import Tensor
from ._sizes import Size, batched, sizes

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
]


def _convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any
) -> Tensor:
    """The convolution; for complex tensors it is computed from three real convolutions (Gauss), as in
    PyTorch."""
    if not (weight.is_complex() or input.is_complex()):
        return _ops.convolution(input, weight, bias, *settings)
    for name, other in (("weight", weight), ("bias", bias)):
        if other is not None and other.dtype != input.dtype:
            raise RuntimeError(
                f"convolution: operands have different dtypes: input {input.dtype.name} and "
                f"{name} {other.dtype.name}"
            )
    (xr, xi), (wr, wi) = ((_ops.real(t), _ops.imag(t)) for t in (input, weight))
    br = bi = both = None
    if bias is not None:
        br, bi = _ops.real(bias), _ops.imag(bias)
        both = br + bi
    first = _ops.convolution(xr, wr, br, *settings)
    second = _ops.convolution(xi, wi, None, *settings)
    cross = _ops.convolution(xr + xi, wr + wi, both, *settings)
    return _ops.complex(first - second, cross - first - second)


def _conv(
    spatial: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
) -> Tensor:
    name = f"conv{spatial}d"
    if weight.dim() != spatial + 2:
        raise RuntimeError(
            f"{name}: expected weight to have {spatial + 2} dimensions, but got shape "
            f"{list(weight.shape)}"
        )
    steps = sizes(name, "stride", stride, spatial)
    gaps = sizes(name, "dilation", dilation, spatial)
    if not isinstance(padding, str):
        edges = sizes(name, "padding", padding, spatial)
    elif padding == "valid":
        edges = (0,) * spatial
    elif padding != "same":
        raise RuntimeError(f"{name}: invalid padding string: {padding!r}")
    else:
        if any(s != 1 for s in steps):
            raise RuntimeError(f"{name}: padding='same' is not supported for strided convolutions")
        total = [d * (k - 1) for d, k in zip(gaps, weight.shape[2:], strict=True)]
        edges = tuple(t // 2 for t in total)
        more = [t % 2 for t in total]
        if any(more):  # one more element of padding at the end than at the start
            around = [n for m in reversed(more) for n in (0, m)]
            input = _ops.constant_pad_nd(input, 0, around)
    zeros = (0,) * spatial
    result: Tensor = batched(
        name,
        input,
        spatial,
        lambda x: _convolution(x, weight, bias, steps, edges, gaps, False, zeros, groups),
    )
    return result


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation: input [N, C, L] (or [C, L]), weight [O, C / groups, K] and bias [O] give [N, O,
    L']. padding is the number of zeros that are added on both sides, or "valid" (none), or "same" (the
    result has the input's length; requires stride 1)."""
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation: input [N, C, H, W] (or [C, H, W]), weight [O, C / groups, KH, KW] and bias [O]
    give [N, O, H', W']. padding is the number of zeros that are added on both sides, or "valid", or
    "same"."""
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation: input [N, C, D, H, W] (or [C, D, H, W]), weight [O, C / groups, KD, KH, KW] and
    bias [O] give [N, O, D', H', W']. padding is as for conv2d."""
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


def _conv_transpose(
    spatial: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size,
    padding: Size,
    output_padding: Size,
    groups: int,
    dilation: Size,
) -> Tensor:
    name = f"conv_transpose{spatial}d"
    if weight.dim() != spatial + 2:
        raise RuntimeError(
            f"{name}: expected weight to have {spatial + 2} dimensions, but got shape "
            f"{list(weight.shape)}"
        )
    steps = sizes(name, "stride", stride, spatial)
    edges = sizes(name, "padding", padding, spatial)
    extra = sizes(name, "output_padding", output_padding, spatial)
    gaps = sizes(name, "dilation", dilation, spatial)
    result: Tensor = batched(
        name,
        input,
        spatial,
        lambda x: _convolution(x, weight, bias, steps, edges, gaps, True, extra, groups),
    )
    return result


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """The adjoint of conv1d: input [N, C, L], weight [C, O / groups, K] and bias [O] give
    [N, O, (L - 1) * stride - 2 * padding + dilation * (K - 1) + output_padding + 1]."""
    return _conv_transpose(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """The adjoint of conv2d with weight [C, O / groups, KH, KW]; sizes are computed as for
    conv_transpose1d."""
    return _conv_transpose(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """The adjoint of conv3d with weight [C, O / groups, KD, KH, KW]; sizes are computed as for
    conv_transpose1d."""
    return _conv_transpose(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """conv1d with the batch as the middle dimension: input [L, N, C], weight [K, C, O] and bias [O] give [L
    + 2 * pad - K + 1, N, O]."""
    for name, value, rank, dims in (("input", input, 3, "time, batch, in_channel"),
                                    ("weight", weight, 3, "kernel_width, in_channels, out_channels"),
                                    ("bias", bias, 1, "out_channels")):
        if value.dim() != rank:
            raise RuntimeError(f"conv_tbc: {name} must have {rank} dims ({dims}), but has shape "
                               f"{list(value.shape)}")
    out = conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    result: Tensor = out.permute(2, 0, 1).contiguous()
    return result
