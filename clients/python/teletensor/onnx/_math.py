"""Elementwise ONNX operators, reductions and matrix products."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _api as tt, linalg, nn
from .._core import Tensor
from ._file import OnnxError
from ._table import Ints, Node, op
from ._values import on_daemon

F = nn.functional


def _unary(function: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def unary(X: Tensor) -> Tensor:
        return function(X)

    return unary


for _name, _function in {
    "Abs": tt.abs, "Acos": tt.acos, "Acosh": tt.acosh, "Asin": tt.asin, "Asinh": tt.asinh, "Atan": tt.atan,
    "Atanh": tt.atanh, "BitwiseNot": tt.bitwise_not, "Ceil": tt.ceil, "Cos": tt.cos, "Cosh": tt.cosh,
    "Det": linalg.det, "Erf": tt.erf, "Exp": tt.exp, "Floor": tt.floor, "HardSwish": F.hardswish,
    "IsNaN": tt.isnan, "Log": tt.log, "Mish": F.mish, "Neg": tt.neg, "Not": tt.logical_not,
    "Reciprocal": tt.reciprocal, "Relu": F.relu, "Round": tt.round, "Sigmoid": tt.sigmoid, "Sign": tt.sign,
    "Sin": tt.sin, "Sinh": tt.sinh, "Softplus": F.softplus, "Softsign": F.softsign, "Sqrt": tt.sqrt,
    "Tan": tt.tan, "Tanh": tt.tanh,
}.items():  # fmt: skip
    op(_name)(_unary(_function))


def _binary(function: Callable[[Tensor, Tensor], Tensor], mixed: bool) -> Callable[..., Any]:
    def binary(A: Tensor, B: Tensor) -> Tensor:
        if A.dtype != B.dtype and not mixed:
            raise TypeError(f"the inputs have dtypes {A.dtype} and {B.dtype}, and ONNX converts neither")
        return function(A, B)

    return binary


def _div(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else tt.div(a, b, rounding_mode="trunc")


def _power(base: Tensor, exponent: Tensor) -> Tensor:
    if base.is_floating_point():
        return tt.pow(base, exponent.to(base.dtype))
    if exponent.is_floating_point():
        return tt.pow(base.double(), exponent.double()).to(base.dtype)
    return tt.pow(base, exponent.to(base.dtype))


_OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": tt.add, "Sub": tt.sub, "Mul": tt.mul, "Div": _div, "Pow": _power,
    "And": tt.logical_and, "Or": tt.logical_or, "Xor": tt.logical_xor, "BitwiseAnd": tt.bitwise_and,
    "BitwiseOr": tt.bitwise_or, "BitwiseXor": tt.bitwise_xor, "Less": tt.lt,
    "LessOrEqual": tt.le, "Greater": tt.gt, "GreaterOrEqual": tt.ge, "MatMul": tt.matmul,
}  # fmt: skip
for _name, _operator in _OPERATORS.items():
    op(_name)(_binary(_operator, mixed=_name == "Pow"))


@op("Equal")
def equal(A: Any, B: Any) -> Any:
    if isinstance(A, np.ndarray) and A.dtype == object:  # the inputs are strings
        return np.asarray(A == B, bool)
    return tt.eq(on_daemon(A), on_daemon(B))


@op("Mod")
def mod(A: Tensor, B: Tensor, *, fmod: Any = 0) -> Tensor:
    return tt.fmod(A, B) if fmod else tt.remainder(A, B)


@op("BitShift")
def bit_shift(X: Tensor, Y: Tensor, *, direction: str) -> Tensor:
    # Shifts are computed in int64: a shifted uint32 fits, and a uint64 is shifted as the int64 with its
    # bits.
    wide, places = X.to(tt.int64), Y.to(tt.int64)
    if direction == "LEFT":
        return tt.bitwise_left_shift(wide, places).to(X.dtype)
    shifted = tt.bitwise_right_shift(wide, places)
    if X.dtype == tt.uint64:
        mask = tt.bitwise_left_shift(tt.full_like(wide, -1), 64 - places)
        shifted = tt.where(places == 0, wide, shifted & ~mask)
    return shifted.to(X.dtype)


def _folded(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    def fold(*data_0: Tensor) -> Tensor:
        return functools.reduce(function, data_0)

    return fold


op("Max")(_folded(tt.maximum))
op("Min")(_folded(tt.minimum))
op("Sum")(_folded(tt.add))


@op("Mean")
def mean(*data_0: Tensor) -> Tensor:
    return functools.reduce(tt.add, data_0) / len(data_0)


@op("Where")
def where(condition: Tensor, X: Tensor, Y: Tensor) -> Any:
    return tt.where(condition, X, Y)


@op("Clip")
def clip(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    if min is not None:
        input = tt.maximum(input, _like(min, input))
    return input if max is None else tt.minimum(input, _like(max, input))


def _like(value: Any, x: Tensor) -> Tensor:
    found = tt.tensor(value) if isinstance(value, float) else on_daemon(value)
    return found.to(x.dtype)


@op("IsInf")
def is_inf(X: Tensor, *, detect_negative: Any = 1, detect_positive: Any = 1) -> Tensor:
    if detect_negative and detect_positive:
        return tt.isinf(X)
    if not detect_negative and not detect_positive:
        return tt.zeros_like(X, dtype=tt.bool)
    return tt.isposinf(X) if detect_positive else tt.isneginf(X)


# ---- activations


@op("LeakyRelu")
def leaky_relu(X: Tensor, *, alpha: Any = 0.01) -> Tensor:
    return F.leaky_relu(X, alpha)


@op("Elu")
def elu(X: Tensor, *, alpha: Any = 1.0) -> Tensor:
    return F.elu(X, alpha)


@op("Celu")
def celu(X: Tensor, *, alpha: Any = 1.0) -> Tensor:
    return F.celu(X, alpha)


@op("Selu")
def selu(X: Tensor, *, alpha: Any = 1.6732631921768188, gamma: Any = 1.0507010221481323) -> Any:
    return tt.where(X > 0, gamma * X, gamma * (alpha * tt.exp(X) - alpha))


@op("Gelu")
def gelu(X: Tensor, *, approximate: str = "none") -> Tensor:
    return F.gelu(X, approximate=approximate)


@op("HardSigmoid")
def hard_sigmoid(X: Tensor, *, alpha: Any = 0.2, beta: Any = 0.5) -> Tensor:
    return tt.clamp(alpha * X + beta, 0, 1)


@op("ThresholdedRelu")
def thresholded_relu(X: Tensor, *, alpha: Any = 1.0) -> Any:
    return tt.where(X > alpha, X, tt.zeros_like(X))


@op("PRelu")
def p_relu(X: Tensor, slope: Tensor) -> Any:
    return tt.where(X < 0, slope * X, X)


@op("Shrink")
def shrink(input: Tensor, *, bias: Any = 0.0, lambd: Any = 0.5) -> Any:
    zero = tt.zeros_like(input)
    return tt.where(input < -lambd, input + bias, tt.where(input > lambd, input - bias, zero)).to(
        input.dtype
    )


@op("Swish")
def swish(X: Tensor, *, alpha: Any = 1.0) -> Tensor:
    return X * tt.sigmoid(alpha * X)


@op("SwiGLU")
def swi_glu(A: Tensor, B: Tensor, *, alpha: Any = 1.0) -> Tensor:
    return A * tt.sigmoid(alpha * A) * B


def _by_axis(name: str, function: Callable[[Tensor, int], Tensor]) -> None:
    @op(name, since=13)
    def of_axis(input: Tensor, *, axis: Any = -1) -> Tensor:
        return function(input, axis)

    @op(name)
    def of_rest(input: Tensor, *, axis: Any = 1) -> Tensor:
        axis %= max(input.dim(), 1)
        rows = input.reshape(math.prod(input.shape[:axis]), -1)
        return function(rows, 1).reshape(input.shape)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    return F.one_hot(x.argmax(axis), x.shape[axis]).movedim(-1, axis).to(x.dtype)


_by_axis("Softmax", F.softmax)
_by_axis("LogSoftmax", F.log_softmax)
_by_axis("Hardmax", _hardmax)


# ---- reductions


def _extreme(function: Callable[..., Tensor], sign: int) -> Callable[..., Tensor]:
    def extreme(x: Tensor, dims: Ints, keep: bool) -> Tensor:
        if any(x.shape[d] == 0 for d in dims):  # the smallest or largest number of the type
            least = (
                -math.inf
                if x.is_floating_point()
                else False
                if x.dtype == tt.bool
                else tt.iinfo(x.dtype).min
            )
            most = (
                math.inf if x.is_floating_point() else True if x.dtype == tt.bool else tt.iinfo(x.dtype).max
            )
            shape = [1 if i in dims else s for i, s in enumerate(x.shape) if keep or i not in dims]
            return tt.full(shape, least if sign > 0 else most, dtype=x.dtype)
        return function(x, dims, keepdim=keep)

    return extreme


def _prod(x: Tensor, dims: Ints, keep: bool) -> Tensor:
    for dim in sorted(dims, reverse=True):
        x = tt.prod(x, dim, keepdim=keep)
    return x


def _log_sum_exp(x: Tensor, dims: Ints, keep: bool) -> Tensor:
    if any(x.shape[d] == 0 for d in dims):
        return tt.log(tt.sum(x, dims, keepdim=keep))
    return tt.logsumexp(x, dims, keepdim=keep)


for _name, _reduction in {
    "ReduceSum": lambda x, d, k: tt.sum(x, d, keepdim=k),
    "ReduceMean": lambda x, d, k: tt.mean(x if x.is_floating_point() else x.double(), d, keepdim=k),
    "ReduceProd": _prod,
    "ReduceMax": _extreme(tt.amax, 1),
    "ReduceMin": _extreme(tt.amin, -1),
    "ReduceL1": lambda x, d, k: tt.sum(x.abs(), d, keepdim=k),
    "ReduceL2": lambda x, d, k: tt.sqrt(
        tt.sum((x * x).to(x.dtype if x.is_floating_point() else tt.float64), d, keepdim=k)
    ),
    "ReduceLogSum": lambda x, d, k: tt.log(tt.sum(x, d, keepdim=k)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": lambda x, d, k: tt.sum(x * x, d, keepdim=k),
}.items():

    def _enter(function: Callable[..., Tensor], name: str) -> None:
        @op(name)
        def reduce(
            data: Tensor, axes: Ints | None = None, *, keepdims: Any = 1, noop_with_empty_axes: Any = 0
        ) -> Tensor:
            if not axes and noop_with_empty_axes:  # each sum has a single element
                return function(data.unsqueeze(-1), [data.dim()], False).to(data.dtype)
            rank = data.dim()
            for each in axes or ():
                if not -rank <= each < max(rank, 1):
                    raise OnnxError(f"there is no axis {each} of {rank}")
            dims = [each % max(rank, 1) for each in axes] if axes else list(range(rank))
            if rank == 0:
                return function(data.unsqueeze(0), [0], False).to(data.dtype)
            return function(data, dims, bool(keepdims)).to(data.dtype)

    _enter(_reduction, _name)


def _arg(function: Callable[..., Tensor], name: str) -> None:
    @op(name)
    def arg(data: Tensor, *, axis: Any = 0, keepdims: Any = 1, select_last_index: Any = 0) -> Any:
        if select_last_index:
            return data.shape[axis] - 1 - function(data.flip(axis), axis, keepdim=bool(keepdims))
        return function(data, axis, keepdim=bool(keepdims))


_arg(tt.argmax, "ArgMax")
_arg(tt.argmin, "ArgMin")


def _running(function: Callable[[Tensor, int], Tensor], name: str, first: int) -> None:
    @op(name)
    def running(x: Tensor, axis: Ints, *, exclusive: Any = 0, reverse: Any = 0) -> Tensor:
        dim = axis[0]
        if reverse:
            x = x.flip(dim)
        found = function(x, dim).to(x.dtype)
        if exclusive:
            begin = tt.full_like(found.narrow(dim, 0, min(1, found.shape[dim])), first)
            found = tt.cat([begin, found.narrow(dim, 0, max(found.shape[dim] - 1, 0))], dim)
        return found.flip(dim) if reverse else found


_running(tt.cumsum, "CumSum", 0)
_running(tt.cumprod, "CumProd", 1)


@op("TopK")
def top_k(
    X: Tensor, K: Ints | None = None, *, k: Any = None, axis: Any = -1, largest: Any = 1, sorted: Any = 1
) -> tuple[Tensor, ...]:
    count = K[0] if K is not None else k
    if not 0 <= count <= X.shape[axis]:
        raise OnnxError(f"K is {count}, but the axis has {X.shape[axis]} elements")
    values, places = tt.sort(X, axis, bool(largest), stable=True)
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


# ---- products


@op("Gemm")
def gemm(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    transA: Any = 0,
    transB: Any = 0,
) -> Tensor:
    product = tt.matmul(A.t() if transA else A, B.t() if transB else B)
    if alpha != 1:
        product = (product * alpha).to(A.dtype)
    if C is None:
        return product
    return product + (C if beta == 1 else (C * beta).to(A.dtype))


@op("Einsum")
def einsum(*Inputs: Tensor, equation: str) -> Tensor:
    return tt.einsum(equation, *Inputs)


# ---- random numbers, which use the session's generator and ignore the seeds in the file


def _like_dtype(number: Any, x: Tensor) -> tt.dtype:
    from ._values import dtype, type_name

    return x.dtype if number is None else dtype(type_name(number))


@op("RandomUniformLike")
def random_uniform_like(
    input: Tensor, *, dtype: Any = None, high: Any = 1.0, low: Any = 0.0, seed: Any = None
) -> Any:
    return tt.rand(input.shape, dtype=_like_dtype(dtype, input)) * (high - low) + low


@op("RandomNormalLike")
def random_normal_like(
    input: Tensor, *, dtype: Any = None, mean: Any = 0.0, scale: Any = 1.0, seed: Any = None
) -> Any:
    return tt.randn(input.shape, dtype=_like_dtype(dtype, input)) * scale + mean


@op("RandomUniform")
def random_uniform(
    *, shape: Ints, dtype: Any = 1, high: Any = 1.0, low: Any = 0.0, seed: Any = None
) -> Any:
    return tt.rand(shape, dtype=_like_dtype(dtype, tt.zeros(0))) * (high - low) + low


@op("RandomNormal")
def random_normal(
    *, shape: Ints, dtype: Any = 1, mean: Any = 0.0, scale: Any = 1.0, seed: Any = None
) -> Any:
    return tt.randn(shape, dtype=_like_dtype(dtype, tt.zeros(0))) * scale + mean


@op("Bernoulli")
def bernoulli(input: Tensor, *, dtype: Any = None, seed: Any = None) -> Tensor:
    return tt.bernoulli(input).to(_like_dtype(dtype, input))


@op("Multinomial")
def multinomial(input: Tensor, *, dtype: Any = 6, sample_size: Any = 1, seed: Any = None) -> Tensor:
    drawn = tt.multinomial(F.softmax(input, -1), sample_size, replacement=True)
    return drawn.to(_like_dtype(dtype, input))


@op("Dropout")
def dropout(
    data: Tensor,
    ratio: Any = 0.5,
    training_mode: Any = 0,
    *,
    seed: Any = None,
    is_test: Any = 0,
    node: Node,
) -> Any:
    from ._values import host

    share = float(np.asarray(host(ratio)).reshape(-1)[0]) if bool(host(training_mode).any()) else 0.0
    if share == 0:
        kept = tt.ones_like(data, dtype=tt.bool)
        return (data, kept) if len(node.outputs) > 1 else data
    kept = tt.rand(data.shape) >= share
    return data * kept / (1 - share), kept
