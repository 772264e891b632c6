"""Implementations in NumPy, on the host, of the operators that compute sizes and indices in most models.

Each takes the node, the inputs as arrays (None for an input that is left out), and the attributes by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ._file import NUMPY, OnnxError
from ._table import HOST

__all__ = ["count"]

Array = np.ndarray[Any, Any]


def count(op: str, inputs: list[Any]) -> int:
    """The number of elements in the result of an operator whose result may be larger than its inputs."""
    if op == "Range":
        start, limit, delta = (float(v.item()) for v in inputs)
        return (
            2**62
            if delta == 0 or not math.isfinite((limit - start) / delta)
            else int((limit - start) / delta)
        )
    sizes = [abs(int(v)) for v in inputs[-1].reshape(-1)]
    return math.prod(sizes) * (inputs[0].size if op == "Tile" else 1)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda node, *inputs: function(*inputs)


def _div(node: Any, a: Array, b: Array) -> Any:
    if a.dtype.kind == "f":
        return a / b
    if (b == 0).any():
        raise OnnxError(f"{node}: an integer division by zero")
    quotient = np.floor_divide(a, b)
    return (quotient + ((quotient < 0) & (quotient * b != a))).astype(a.dtype)


def _axes(value: Any) -> Any:
    return None if value is None else tuple(int(v) for v in np.asarray(value).reshape(-1))


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(
        node: Any,
        x: Array,
        given: Any = None,
        axes: Any = None,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Any:
        chosen = _axes(given if given is not None else axes)
        if not chosen and noop_with_empty_axes:
            return x
        return function(x, axis=chosen or None, keepdims=bool(keepdims)).astype(x.dtype)

    return reduce


def _unsqueeze(node: Any, x: Array, given: Any = None, axes: Any = None) -> Any:
    return np.expand_dims(x, _axes(given if given is not None else axes))


def _squeeze(node: Any, x: Array, given: Any = None, axes: Any = None) -> Any:
    return np.squeeze(x, _axes(given if given is not None else axes))


def _reshape(node: Any, x: Array, shape: Array, allowzero: int = 0) -> Any:
    sizes = [x.shape[i] if s == 0 and not allowzero else int(s) for i, s in enumerate(shape)]
    return x.reshape(sizes)


def _slice(
    node: Any, x: Array, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> Any:
    index = [slice(None)] * x.ndim
    chosen = range(len(starts)) if axes is None else axes
    for i, axis in enumerate(chosen):
        step = 1 if steps is None else int(steps[i])
        start, end = int(starts[i]), int(ends[i])
        index[int(axis)] = slice(start, None if step < 0 and end < -x.shape[int(axis)] else end, step)
    return x[tuple(index)]


def _cast(node: Any, x: Array, to: int = 1, **options: Any) -> Any:
    from ._values import type_name

    name = type_name(to)
    if name not in NUMPY:
        from ._shapes import cast
        from ._values import on_daemon

        return cast(on_daemon(x), to, **options)
    return x.astype(NUMPY[name])


def _constant_of_shape(node: Any, shape: Array, value: Any = None) -> Any:
    filled = np.zeros(1, np.float32) if value is None else value
    return np.full(tuple(int(s) for s in shape), filled.reshape(-1)[0], filled.dtype)


def _gather(node: Any, x: Array, indices: Array, axis: int = 0) -> Any:
    return np.take(x, indices, axis)


def _concat(node: Any, *inputs: Array, axis: int = 1) -> Any:
    return np.concatenate(inputs, axis)


def _split(
    node: Any, x: Array, given: Any = None, split: Any = None, axis: int = 0, num_outputs: int = 0
) -> Any:
    sizes = given if given is not None else split
    if sizes is None:
        parts = len(node.outputs)
        step = -(-x.shape[axis] // parts)
        return tuple(np.split(x, [step * i for i in range(1, parts)], axis))
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


def _transpose(node: Any, x: Array, perm: Any = None) -> Any:
    return np.transpose(x, perm)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Neg": np.negative, "Abs": np.abs,
    "Floor": np.floor, "Ceil": np.ceil, "Sqrt": np.sqrt, "Not": np.logical_not, "And": np.logical_and,
    "Or": np.logical_or, "Equal": np.equal, "Less": np.less, "Greater": np.greater,
    "LessOrEqual": np.less_equal, "GreaterOrEqual": np.greater_equal, "Where": np.where,
    "Identity": np.asarray,
    "Min": lambda *xs: np.minimum.reduce(np.broadcast_arrays(*xs)),
    "Max": lambda *xs: np.maximum.reduce(np.broadcast_arrays(*xs)),
    "Range": lambda *xs: np.arange(*(x.item() for x in xs), dtype=xs[0].dtype),
    "Expand": lambda x, shape: x * np.ones([int(s) for s in shape], x.dtype) if x.dtype.kind != "b" else (
        x & np.ones([int(s) for s in shape], bool)),
    "Tile": lambda x, repeats: np.tile(x, [int(r) for r in repeats]),
    "CastLike": lambda x, like: x.astype(like.dtype),
}  # fmt: skip
HOST.update({name: _plain(function) for name, function in _FUNCTIONS.items()})
HOST.update(
    {
        "Div": _div,
        "Reshape": _reshape,
        "Slice": _slice,
        "Cast": _cast,
        "ConstantOfShape": _constant_of_shape,
        "Gather": _gather,
        "Concat": _concat,
        "Split": _split,
        "Transpose": _transpose,
        "Unsqueeze": _unsqueeze,
        "Squeeze": _squeeze,
        "ReduceProd": _reduce(np.prod),
        "ReduceSum": _reduce(np.sum),
        "ReduceMax": _reduce(np.max),
        "ReduceMin": _reduce(np.min),
    }
)
