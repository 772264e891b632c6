"""PyTorch's older constructors, one a dtype: FloatTensor, LongTensor, ..."""

from __future__ import annotations

from typing import Any

from . import _core
from ._convert import tensor
from ._core import Tensor
from ._functions.creation import empty
from ._size import Size
from ._tensor import TYPE_NAMES

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor",
    "HalfTensor", "IntTensor", "LongTensor", "ShortTensor",
]


def of_type(dtype: Any, args: tuple[Any, ...], device: Any = None) -> Tensor:
    """A tensor of values (of one sequence), or of sizes without values, or a tensor's own memory."""
    if len(args) == 1 and isinstance(args[0], Tensor):
        if args[0].dtype != dtype:
            raise TypeError(f"expected a tensor of {dtype}, not of {args[0].dtype}")
        return args[0].detach()
    sizes = args[0] if len(args) == 1 and isinstance(args[0], Size) else args
    if all(isinstance(size, int) for size in sizes):
        return empty(tuple(sizes) or (0,), dtype=dtype, device=device)
    if len(args) != 1 or not hasattr(args[0], "__len__"):
        raise TypeError("a tensor's type takes sizes, or one sequence of values")
    return tensor(args[0], dtype=dtype, device=device)


def of_default_type(*args: Any, device: Any = None) -> Tensor:
    """What `Tensor(...)` makes of all but a tensor."""
    return of_type(_core.default_dtype(), args, device)


def new(self: Tensor, *args: Any, device: Any = None) -> Tensor:
    """A tensor of this one's dtype and device from values or sizes, as by its legacy constructor."""
    return of_type(self.dtype, args, self.device if device is None else device)


class _TensorType(type):
    """FloatTensor(data), FloatTensor(2, 3) without values, isinstance(x, FloatTensor)."""

    dtype: Any

    def __call__(cls, *args: Any, device: Any = None) -> Tensor:
        return of_type(cls.dtype, args, device)

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
setattr(Tensor, "new", new)  # noqa: B010
