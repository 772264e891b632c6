"""Quantisation: integers represent numbers by a scale and a zero point, which apply to all elements, to
each slice of an axis, or to each block of it."""

from __future__ import annotations

from typing import Any

from .. import _api as tt
from .._core import Tensor
from ._narrow import FLOATS, INTEGERS, rounded
from ._table import Ints, op
from ._values import Narrow, dtype, dtype_name, on_daemon, type_name
from ._windows import convolution


def _laid(values: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """Scales or zero points reshaped so that they broadcast to `x`."""
    if values.dim() == 0 or values.numel() == 1 and values.dim() < 2:
        return values.reshape([])
    axis %= x.dim()
    if values.dim() == 1:
        return values.reshape([-1 if i == axis else 1 for i in range(x.dim())])
    block = block_size or -(-x.shape[axis] // values.shape[axis])
    return values.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])


def _plain(value: Any) -> Tensor:
    return value.tensor if isinstance(value, Narrow) else on_daemon(value)


def _limits(name: str) -> tuple[int, int]:
    if name in INTEGERS:
        bits, signed = INTEGERS[name], not name.startswith("u")
        return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    found = tt.iinfo(dtype(name))
    return found.min, found.max


def quantized(x: Tensor, scale: Tensor, zero: Any, name: str, saturate: bool = True) -> Any:
    """Quantises numbers to integers, or to narrow floating-point numbers, of the type `name`."""
    steps = x / scale
    offset = None if zero is None else _plain(zero).to(steps.dtype)
    if name in FLOATS:
        return Narrow(name, rounded(steps if offset is None else steps + offset, name, saturate))
    steps = tt.round(steps)
    if offset is not None:
        steps = steps + offset
    low, high = _limits(name)
    found = steps.clamp(low, high)
    if name in INTEGERS:
        return Narrow(name, found.to(tt.uint8 if name.startswith("u") else tt.int8))
    return found.to(dtype(name))


@op("QuantizeLinear")
def quantize_linear(
    x: Tensor,
    y_scale: Tensor,
    y_zero_point: Any = None,
    *,
    axis: Any = 1,
    block_size: Any = 0,
    output_dtype: Any = 0,
    precision: Any = 0,
    saturate: Any = 1,
) -> Any:
    name = (
        type_name(output_dtype)
        if output_dtype
        else ("uint8" if y_zero_point is None else dtype_name(y_zero_point))
    )
    work = (
        dtype(type_name(precision))
        if precision
        else y_scale.dtype
        if y_scale.is_floating_point()
        else x.dtype
    )
    if work in (tt.float16, tt.bfloat16) and not precision:
        work = tt.float32
    scale = _laid(y_scale.to(work), x, axis, block_size)
    zero = None if y_zero_point is None else _laid(_plain(y_zero_point), x, axis, block_size)
    return quantized(x.to(work), scale, zero, name, bool(saturate))


@op("DequantizeLinear")
def dequantize_linear(
    x: Any,
    x_scale: Tensor,
    x_zero_point: Any = None,
    *,
    axis: Any = 1,
    block_size: Any = 0,
    output_dtype: Any = 0,
) -> Tensor:
    values = _plain(x)
    work = tt.float32 if values.dtype.is_floating_point else tt.int32
    wide = values.to(work)
    if x_zero_point is not None:
        wide = wide - _laid(_plain(x_zero_point).to(work), values, axis, block_size)
    kind = dtype(type_name(output_dtype)) if output_dtype else x_scale.dtype
    return (wide.to(tt.float32) * _laid(x_scale.to(tt.float32), values, axis, block_size)).to(kind)


@op("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Tensor) -> Any:
    zero = tt.zeros([], dtype=x.dtype)
    low, high = tt.minimum(x.amin(), zero), tt.maximum(x.amax(), zero)
    scale = (high - low) / 255
    scale = tt.where(scale == 0, tt.ones_like(scale), scale)
    point = tt.round((-low / scale).clamp(0, 255))
    return quantized(x, scale, point, "uint8"), scale, point.to(tt.uint8)


def _centred(x: Any, zero: Any, axis: int = 0) -> Tensor:
    """Integers minus their zero point, in int32."""
    values = on_daemon(x).to(tt.int32)
    if zero is None:
        return values
    return values - _laid(on_daemon(zero).to(tt.int32), values, axis, 0)


@op("MatMulInteger")
def mat_mul_integer(A: Tensor, B: Tensor, a_zero_point: Any = None, b_zero_point: Any = None) -> Tensor:
    return tt.matmul(_centred(A, a_zero_point, -2), _centred(B, b_zero_point, -1))


@op("QLinearMatMul")
def q_linear_mat_mul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Any:
    product = mat_mul_integer(a, b, a_zero_point, b_zero_point).to(tt.float32)
    scale = (
        _laid(a_scale.float(), product, -2, 0)
        * _laid(b_scale.float(), product, -1, 0)
        / _laid(y_scale.float(), product, -2, 0)
    )
    return quantized(
        product * scale, tt.ones([]), _laid(y_zero_point, product, -2, 0), dtype_name(y_zero_point)
    )


def _integer_convolution(
    x: Tensor,
    x_zero: Any,
    w: Tensor,
    w_zero: Any,
    auto_pad: str,
    dilations: Ints | None,
    group: int,
    pads: Ints | None,
    strides: Ints | None,
) -> Tensor:
    """Computed in float64, which represents sums of products of 8-bit integers exactly."""
    plain, weight = _centred(x, x_zero).double(), _centred(w, w_zero).double()
    return convolution(plain, weight, None, auto_pad, dilations, group, pads, strides)


@op("ConvInteger")
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero_point: Any = None,
    w_zero_point: Any = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: Any = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    return _integer_convolution(
        x, x_zero_point, w, w_zero_point, auto_pad, dilations, group, pads, strides
    ).to(tt.int32)


@op("QLinearConv")
def q_linear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    B: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: Any = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Any:
    y = _integer_convolution(
        x, x_zero_point, w, w_zero_point, auto_pad, dilations, group, pads, strides
    )
    if B is not None:
        y = y + B.reshape([-1] + [1] * (y.dim() - 2)).to(y.dtype)
    scale = x_scale.double() * _laid(w_scale.double(), y, 1, 0) / y_scale.double()
    return quantized(y * scale, tt.ones([]), y_zero_point, dtype_name(y_zero_point))
