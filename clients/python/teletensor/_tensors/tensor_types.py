"""PyTorch's older constructors, one for each dtype: FloatTensor, LongTensor, ..."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._core import Tensor
from .._functions.arrays.creation import empty
from .._functions.typeinfo import TYPE_NAMES, type_name
from .convert import tensor
from .size import Size

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor",
    "HalfTensor", "IntTensor", "LongTensor", "ShortTensor",
]


def of_type(dtype: Any, args: tuple[Any, ...], device: Any = None) -> Tensor:
    """A tensor with the given values (one sequence), an uninitialised tensor of the given sizes, or a given
    tensor's own memory."""
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
    """The result of `Tensor(...)` for any argument but a tensor."""
    return of_type(_core.default_dtype(), args, device)


def new(self: Tensor, *args: Any, device: Any = None) -> Tensor:
    """A tensor with this tensor's dtype and device, made from values or sizes like a legacy constructor."""
    return of_type(self.dtype, args, self.device if device is None else device)


class _TensorType(type):
    """Types such as FloatTensor: FloatTensor(data), FloatTensor(2, 3) without values, isinstance(x,
    FloatTensor)."""

    dtype: Any
    cuda: bool

    def __call__(cls, *args: Any, device: Any = None) -> Tensor:
        return of_type(cls.dtype, args, "cuda" if cls.cuda and device is None else device)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Tensor) and x.dtype == cls.dtype and x.is_cuda == cls.cuda


def _tensor_type(dtype: str, cuda: bool = False) -> Any:
    names = {"dtype": getattr(_core, dtype), "cuda": cuda,
             "__doc__": f"Tensors of {dtype}{' on a GPU' * cuda}.",
             "__module__": "teletensor.cuda" if cuda else "teletensor"}
    return _TensorType(f"{TYPE_NAMES[dtype]}Tensor", (), names)


def tensor_type(given: Any) -> Any:
    """The tensor type for a type, for `Tensor`, or for a name: "torch.FloatTensor",
    "torch.cuda.HalfTensor". ValueError for another name."""
    if given is Tensor:
        given = f"{type_name(_core.default_dtype())}Tensor"
    if isinstance(given, _TensorType):
        return given
    place, _, name = str(given).rpartition(".")
    if not isinstance(given, str) or name not in __all__:
        raise ValueError(f"invalid type: {given!r}")
    return CUDA_TYPES[name] if place.endswith("cuda") else globals()[name]


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
CUDA_TYPES: dict[str, Any] = {f"{short}Tensor": _tensor_type(dtype, cuda=True)
                              for dtype, short in TYPE_NAMES.items()}
setattr(Tensor, "new", new)  # noqa: B010
