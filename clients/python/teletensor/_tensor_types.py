"""PyTorch's older constructors, one a dtype: FloatTensor, LongTensor, ..."""

from __future__ import annotations

from typing import Any

from . import _core
from ._convert import tensor
from ._core import Tensor
from ._functions.creation import empty
from ._tensor import TYPE_NAMES

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


def _tensor_type(dtype: str) -> Any:
    names = {"dtype": getattr(_core, dtype), "__doc__": f"Tensors of {dtype}.",
             "__module__": "teletensor"}
    return _TensorType(f"{TYPE_NAMES[dtype]}Tensor", (), names)


FloatTensor = _tensor_type("float32")
DoubleTensor = _tensor_type("float64")
HalfTensor = _tensor_type("float16")
BFloat16Tensor = _tensor_type("bfloat16")
ByteTensor = _tensor_type("uint8")
CharTensor = _tensor_type("int8")
ShortTensor = _tensor_type("int16")
IntTensor = _tensor_type("int32")
LongTensor = _tensor_type("int64")
BoolTensor = _tensor_type("bool")
