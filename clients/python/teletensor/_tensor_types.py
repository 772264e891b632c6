"""PyTorch's older constructors, one a dtype: FloatTensor, LongTensor, ..."""

from __future__ import annotations

from typing import Any

from . import _core
from ._convert import tensor
from ._core import Tensor
from ._functions.creation import empty

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor",
    "HalfTensor", "IntTensor", "LongTensor", "ShortTensor",
]


class _TensorType(type):
    """FloatTensor(data), FloatTensor(2, 3) without values, isinstance(x, FloatTensor)."""

    dtype: Any

    def __call__(cls, *args: Any, device: Any = None) -> Tensor:
        if len(args) == 1 and isinstance(args[0], Tensor):
            if args[0].dtype != cls.dtype:
                raise TypeError(f"{cls.__name__}() of a tensor of {args[0].dtype}: expected {cls.dtype}")
            return args[0].detach()
        sizes = args[0] if len(args) == 1 and type(args[0]).__name__ == "Size" else args
        if all(isinstance(size, int) for size in sizes):
            return empty(tuple(sizes) or (0,), dtype=cls.dtype, device=device)
        if len(args) != 1:
            raise TypeError(f"{cls.__name__}() takes sizes, or one sequence of values")
        return tensor(args[0], dtype=cls.dtype, device=device)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Tensor) and x.dtype == cls.dtype


class FloatTensor(metaclass=_TensorType):
    """Tensors of float32."""

    dtype = _core.float32


class DoubleTensor(metaclass=_TensorType):
    """Tensors of float64."""

    dtype = _core.float64


class HalfTensor(metaclass=_TensorType):
    """Tensors of float16."""

    dtype = _core.float16


class BFloat16Tensor(metaclass=_TensorType):
    """Tensors of bfloat16."""

    dtype = _core.bfloat16


class ByteTensor(metaclass=_TensorType):
    """Tensors of uint8."""

    dtype = _core.uint8


class CharTensor(metaclass=_TensorType):
    """Tensors of int8."""

    dtype = _core.int8


class ShortTensor(metaclass=_TensorType):
    """Tensors of int16."""

    dtype = _core.int16


class IntTensor(metaclass=_TensorType):
    """Tensors of int32."""

    dtype = _core.int32


class LongTensor(metaclass=_TensorType):
    """Tensors of int64."""

    dtype = _core.int64


class BoolTensor(metaclass=_TensorType):
    """Tensors of bool."""

    dtype = _core.bool
