"""The Python part of Tensor: methods that are attached to the native type, repr, conversions."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from .. import _core, _functions
from .._calls.checked import checked
from .._core import Tensor, ops
from .._functions.common import batched_as, wrap_dim
from .._functions.complex import hermitian, set_imag, set_real
from .._functions.typeinfo import type_name
from .._names.aliases import ALIASES
from .._sessions.session import owner_of
from . import convert as _convert, follow as _follow, indexing as _indexing
from .memory_format import (
    contiguous_format,
    in_format,
    is_in_format,
    memory_format as _memory_format,
    strided,
)
from .pickling import reduced
from .repr import text_of
from .size import Size


class Place:
    """Base class of targets, other than devices, to which a tensor can be moved; it implements the move."""

    def _take(self, x: Tensor) -> Tensor:
        raise NotImplementedError


__all__ = ["Moving", "Place", "Size", "Tensor", "attach", "copied_for", "of_type"]


class RemovableHandle:
    """The result of register_hook; remove() removes the hook."""

    def __init__(self, tensor: Tensor, hook: int) -> None:
        self._tensor, self._hook = tensor, hook

    def remove(self) -> None:
        """Removes the hook."""
        self._tensor._remove_hook(self._hook)


def _to(self: Tensor, *args: Any, dtype: Any = None, device: Any = None, copy: bool = False,
        non_blocking: bool = False, memory_format: Any = None, tensor: Tensor | None = None) -> Tensor:
    """Returns the tensor in another dtype, on another device of the daemon, or on a rank of a mesh
    (`distributed.connect_mesh`); returns the tensor itself if nothing changes."""
    rank: Place | None = None
    for arg in args if tensor is None else (tensor, *args):
        if isinstance(arg, (_core.dtype, type)):
            dtype = arg
        elif isinstance(arg, Tensor):
            dtype, device = arg.dtype, arg.device
        elif isinstance(arg, (str, _core.device)):
            device = arg
        elif isinstance(arg, _memory_format):
            memory_format = arg
        elif isinstance(arg, Place):
            rank = arg
        elif not isinstance(arg, bool):
            raise TypeError(f"to() received an invalid argument: {arg!r}")
    if isinstance(device, Place):
        rank, device = device, None
    out, dtype = self if rank is None else rank._take(self), _convert.dtype_of(dtype)
    if device is not None:
        place = _convert.resolve_device(device, owner_of(self._session))
        if place != self.device:
            out = ops["to_device"](out, place)
    if dtype is not None and dtype != out.dtype:
        out = ops["cast"](out, dtype)
    return in_format(out, memory_format, copy and out is self)


def _cast_method(name: str, dtype: Any) -> Any:
    def cast(self: Tensor, memory_format: Any = None) -> Tensor:
        return in_format(self if self.dtype == dtype else ops["cast"](self, dtype), memory_format)

    cast.__name__, cast.__doc__ = name, f"The tensor as {dtype.name}."
    return cast


@functools.cache
def _autograd() -> Any:
    """The package autograd, which imports this one. An import statement in each call would take longer
    than the call."""
    from .. import autograd

    return autograd


def _backward(self: Tensor, gradient: Tensor | None = None, retain_graph: bool | None = None,
              create_graph: bool = False, inputs: Any = None) -> None:
    """Adds the gradients of this tensor to .grad of the leaves on which it depends.

    This is one instruction: the daemon runs the whole pass. `gradient` is required unless the tensor has
    one element.
    """
    _autograd().backward(self, gradient, retain_graph, create_graph, inputs)


def _register_hook(self: Tensor, hook: Any) -> RemovableHandle:
    """Calls hook(gradient) when the gradient of this tensor is known; a tensor that it returns replaces the
    gradient."""
    return RemovableHandle(self, self._add_hook(hook))


def _register_post_accumulate_grad_hook(self: Tensor, hook: Any) -> RemovableHandle:
    """Calls hook(tensor) whenever a backward has written .grad of this leaf."""
    if not self.is_leaf:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    if not self.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    return RemovableHandle(self, self._add_post_hook(hook))


def _backward_stream(self: Tensor, params: Any, gradient: Tensor | None = None,
                     retain_graph: bool = False) -> Any:
    """Runs backward and yields (name, .grad) of each parameter as soon as it is final."""
    from .. import autograd

    return autograd.backward_stream(self, params, gradient, retain_graph)


def _requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
    """Sets requires_grad; returns the tensor."""
    self.requires_grad = requires_grad
    return self


def _cpu(self: Tensor) -> Tensor:
    """Returns the tensor on the daemon's CPU (use numpy() to get the values into this process)."""
    return _to(self, "cpu")


def _cuda(self: Tensor, device: int | str | _core.device | None = None,
          non_blocking: bool = False) -> Tensor:
    """Returns the tensor on a GPU of the daemon: `device`, or the current one."""
    place = "cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device
    if _core.device(place).type != "cuda":
        raise RuntimeError(f"Invalid device, must be cuda device, but got {device}")
    return _to(self, place)


def _type(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """Returns the tensor cast to `dtype` (or to its name, such as "torch.FloatTensor"); without a dtype,
    returns the name."""
    from .tensor_types import tensor_type

    if dtype is None:
        place = _core.text_prefix() + ("" if self.is_cpu else f".{self.device.type}")
        return f"{place}.{type_name(self.dtype)}Tensor"
    if isinstance(dtype, _core.dtype) or dtype in (bool, int, float, complex):
        return _to(self, dtype)
    kind = tensor_type(dtype)
    where = self.device if kind.cuda == self.is_cuda else "cuda" if kind.cuda else "cpu"
    return _to(self, where, kind.dtype)


_row_major = Tensor.is_contiguous


def _is_contiguous(self: Tensor, memory_format: Any = contiguous_format) -> bool:
    """Returns whether the strides have that memory format (row-major by default), without gaps."""
    if memory_format is contiguous_format:
        return bool(_row_major(self))
    return is_in_format(self, memory_format)


def _dlpack(self: Tensor, *, stream: Any = None, max_version: Any = None, dl_device: Any = None,
            copy: bool | None = None) -> Any:
    """Returns a DLPack capsule with a copy in host memory (the daemon's own memory cannot be exported)."""
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if self.is_meta:
        raise BufferError("Cannot pack tensors on meta")
    return _convert.capsule(self.numpy(), stream, max_version, dl_device, copy)


def _dlpack_device(self: Tensor) -> tuple[int, int]:
    if self.is_meta:
        raise ValueError("Unknown device type meta for Dlpack")
    return 1, 0  # host memory, which has the copy


def _size(self: Tensor, dim: int | None = None) -> Any:
    """Returns the shape, or one size of it."""
    return Size(self._shape) if dim is None else self._shape[wrap_dim(dim, self.dim())]


def _stride(self: Tensor, dim: int | None = None) -> Any:
    """Returns the distance in elements between adjacent indices of each dimension (or of one)."""
    strides = self._strides()
    return strides if dim is None else strides[wrap_dim(dim, self.dim())]


def _iter(self: Tensor) -> Any:
    if self.dim() == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(_functions.unbind(self))


def _matrices_turned(self: Tensor) -> Tensor:
    if self.dim() < 2:
        raise RuntimeError("tensor.mT is only supported on matrices or batches of matrices. Got "
                           f"{self.dim()}-D tensor.")
    return ops["transpose"](self, -2, -1)


def _len(self: Tensor) -> int:
    if self.dim() == 0:
        raise TypeError("len() of a 0-d tensor")
    return int(self._shape[0])


def _bool(self: Tensor) -> bool:
    if self.numel() == 1:
        return bool(self.item())
    if self.numel() == 0:
        raise RuntimeError("Boolean value of Tensor with no values is ambiguous")
    raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")


def _index(self: Tensor) -> int:
    if self.dtype.is_floating_point or self.dtype.is_complex or self.numel() != 1:
        raise TypeError("only integer tensors of a single element can be converted to an index")
    return int(self.item())


def _array(self: Tensor, dtype: Any = None, copy: Any = None) -> Any:
    """As numpy(): the array is read-only unless a copy or another dtype is requested."""
    if copy and dtype is None:
        return _convert.to_numpy(self).copy()
    out = _convert.to_numpy(self)
    return out if dtype is None else out.astype(dtype, copy=bool(copy))


def _rpow(self: Tensor, other: Any) -> Any:
    known = isinstance(other, (bool, int, float, complex, np.generic, Tensor))
    if not known and not _core.is_torch_tensor(other):  # of which the op says how to convert it
        return NotImplemented
    return ops["pow"](other, self)


# NumPy's names of the operators, for NumPy numbers as left operands of tensors.
_REFLECTED = {"add": "radd", "subtract": "rsub", "multiply": "rmul", "divide": "rtruediv",
              "floor_divide": "rfloordiv", "remainder": "rmod", "power": "rpow", "bitwise_and": "rand",
              "bitwise_or": "ror", "bitwise_xor": "rxor", "left_shift": "rlshift",
              "right_shift": "rrshift", "equal": "eq", "not_equal": "ne", "less": "gt",
              "less_equal": "ge", "greater": "lt", "greater_equal": "le"}


def _array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """Implements NumPy's functions of tensors, and of tensors together with arrays: NumPy computes in this
    process and the result is a tensor, as in PyTorch. A NumPy number as left operand of a tensor is treated
    like a Python number."""
    name = _REFLECTED.get(ufunc.__name__)
    if name and method == "__call__" and len(inputs) == 2 and isinstance(inputs[0], np.generic):
        return getattr(self, f"__{name}__")(inputs[0])
    if any(isinstance(x, Tensor) for x in options.get("out", ())):
        raise TypeError("__array_wrap__: the result must be a NumPy array, not a tensor")
    if method == "at" and isinstance(inputs[0], Tensor):
        raise TypeError("first operand must be a NumPy array, not a tensor")
    values = [_convert.to_numpy(x) if isinstance(x, Tensor) else x for x in inputs]
    found = getattr(ufunc, method)(*values, **options)
    if "out" in options or method == "at":
        return found
    made = [_convert.tensor(x) for x in (found if isinstance(found, tuple) else (found,))]
    return tuple(made) if isinstance(found, tuple) else made[0]


def _contains(self: Tensor, value: Any) -> bool:
    if not isinstance(value, (Tensor, bool, int, float, complex)):
        raise RuntimeError("Tensor.__contains__ only supports Tensor or scalar, but you passed in a "
                           f"{type(value)}.")
    return bool(ops["any"](ops["eq"](self, value)).item())


def _copy_(self: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Overwrites the elements with those of src, which is broadcast and may be on another device."""
    if isinstance(src, Tensor) and src.device != self.device:
        src = ops["to_device"](src, self.device)
    return ops["copy_"](self, src)


def _new(name: str) -> Any:
    make = getattr(_functions, name.removeprefix("new_"))

    def new(self: Tensor, *args: Any, dtype: Any = None, device: Any = None, **more: Any) -> Tensor:
        made: Tensor = make(*args, dtype=dtype or self.dtype, device=device or self.device, **more)
        return made if made.requires_grad else batched_as(self, made)

    new.__name__, new.__doc__ = name, f"{make.__doc__} dtype and device are this tensor's."
    return new


def _nelement(self: Tensor) -> int:
    """The number of elements."""
    return self.numel()


def _ndimension(self: Tensor) -> int:
    """The number of dimensions."""
    return self.dim()


def _where(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """Returns this tensor's elements where `condition` is true, and those of `other` elsewhere."""
    return ops["where"](condition, self, other)


def _as_subclass(self: Tensor, cls: type) -> Tensor:
    """Returns a tensor of the class `cls`, a subclass of Tensor, that shares this tensor's memory and is
    computed from it in the graph. `cls.__init__` is not called."""
    if not (isinstance(cls, type) and issubclass(cls, Tensor)):
        raise RuntimeError(f"as_subclass: cls must be a subclass of Tensor, not {cls!r}")
    same: Tensor = ops["alias"](self)
    if cls is not Tensor:
        same.__class__ = cls
    return same


def _record_stream(self: Tensor, s: Any) -> None:
    """Has no effect: the daemon keeps the tensor's memory until everything issued before has run."""


def _type_as(self: Tensor, other: Tensor) -> Tensor:
    """Returns the tensor cast to the dtype of `other`."""
    return _to(self, other.dtype)


# ---------------------------------------------------------------- attaching the methods

_PROPERTIES = {
    "data": (lambda self: ops["data"](self), "The same memory without history."),
    "T": (lambda self: ops["permute"](self, list(range(self.dim()))[::-1]), "Dimensions reversed."),
    "mT": (_matrices_turned, "The last two dimensions swapped."),
    "H": (hermitian, "The conjugate transpose of a matrix."),
    "mH": (_functions.adjoint, "The conjugate with the last two dimensions swapped."),
    "real": (_functions.real, "The view of the real parts; a real tensor itself. Can be assigned."),
    "imag": (_functions.imag, "The view of the imaginary parts. Can be assigned."),
    "is_cpu": (lambda self: self.device.type == "cpu", "Is it on the daemon's CPU?"),
    "is_sparse": (lambda self: False, "Tensors are dense."),
    "is_quantized": (lambda self: False, "Tensors are not quantized."),
    "is_meta": (lambda self: self.device.type == "meta", "Is it on the device meta, without data?"),
    **{f"is_{kind}": (lambda self: False, f"Is it a {kind} tensor? Never.") for kind in (
        "ipu", "maia", "mkldnn", "mps", "mtia", "nested", "sparse_csr", "vulkan", "xla", "xpu")},
    "layout": (lambda self: strided, "How the elements lie in memory: always strided."),
    "is_cuda": (lambda self: self.device.type == "cuda", "Is it on a GPU?"),
    "itemsize": (lambda self: self.element_size(), "Bytes of one element."),
    "nbytes": (lambda self: self.numel() * self.element_size(), "Bytes of all elements."),
}


_SETTERS = {
    "data": lambda self, other: self._set_data(other),
    "real": set_real,
    "imag": set_imag,
}


def attach() -> None:
    """Adds the methods to the native type; called once, at import."""
    for entry in _core.catalog():
        name = entry["name"]
        if entry["internal"] or not entry["parameters"] or hasattr(Tensor, name):
            continue
        if name.startswith("special_"):  # these are in tt.special
            continue
        if entry["parameters"][0]["type"] in ("Tensor", "Operand"):
            setattr(Tensor, name, _core.method(ops[name]))
            if name + "_" in ops:
                setattr(Tensor, name + "_", _core.method(ops[name + "_"]))
    for name, function in _functions.methods().items():
        setattr(Tensor, name, _named(name, function))
    for name, (get, doc) in _PROPERTIES.items():
        setattr(Tensor, name, property(get, _SETTERS.get(name), doc=doc))
    methods = {
        "to": _to, "backward": _backward, "register_hook": _register_hook,
        "register_post_accumulate_grad_hook": _register_post_accumulate_grad_hook,
        "backward_stream": _backward_stream,
        "requires_grad_": _requires_grad_, "cpu": _cpu, "cuda": _cuda,
        "type": _type, "size": _size, "stride": _stride, "is_contiguous": _is_contiguous,
        "numpy": _convert.to_numpy,
        "tolist": _convert.tolist, "copy_": _copy_, "__iter__": _iter, "__len__": _len,
        "__bool__": _bool,
        "__float__": lambda self: float(_number(self)),
        "__pos__": Tensor.positive,
        "__complex__": lambda self: complex(_number(self)),
        "__int__": lambda self: int(_number(self)),
        "__index__": _index, "__array__": _array, "__reversed__": _reversed,
        "__getitem__": _core.method(_indexing.getitem, quick="getitem"),
        "__setitem__": _core.method(_indexing.setitem, quick="setitem"), "__repr__": text_of,
        "__array_priority__": 1000, "__array_ufunc__": _array_ufunc,
        "nelement": _nelement, "hand_over": _follow.hand_over, "take_back": _follow.take_back,
        "ndimension": _ndimension, "where": _where, "type_as": _type_as,
        "as_subclass": _as_subclass, "record_stream": _record_stream,
        "__contains__": _contains,
        "__dlpack__": _dlpack, "__dlpack_device__": _dlpack_device,
        "__copy__": _copy, "__deepcopy__": _deepcopy, "__reduce_ex__": reduced, "__format__": _format,
        "__rpow__": _rpow,
    }
    methods |= _functions.random.FILLS
    for name, method in methods.items():
        setattr(Tensor, name, method if name.startswith("__") else _named(name, method))
    for name in ("new_zeros", "new_ones", "new_full", "new_empty"):
        setattr(Tensor, name, _new(name))
    casts = {"float": _core.float32, "double": _core.float64, "half": _core.float16,
             "bfloat16": _core.bfloat16, "int": _core.int32, "long": _core.int64,
             "bool": _core.bool, "byte": _core.uint8, "char": _core.int8,
             "short": _core.int16, "cfloat": _core.complex64, "cdouble": _core.complex128}
    for name, dtype in casts.items():
        setattr(Tensor, name, _cast_method(name, dtype))
    aliases = {"swapaxes": "transpose", "multiply": "mul",
               "subtract": "sub", "true_divide": "div", "divide": "div", "negative": "neg",
               "absolute": "abs", "greater": "gt", "greater_equal": "ge", "less": "lt",
               "less_equal": "le", "not_equal": "ne", "moveaxis": "movedim", "clip": "clamp",
               "arcsin": "asin", "arccos": "acos", "arctan": "atan"}
    for alias, name in (aliases | ALIASES).items():
        setattr(Tensor, alias, getattr(Tensor, name))
        if hasattr(Tensor, name + "_"):
            setattr(Tensor, alias + "_", getattr(Tensor, name + "_"))


def _named(name: str, function: Any) -> Any:
    """A function as the method of that name, which takes further names of its parameters, too."""
    if isinstance(function, FunctionType):
        if function.__name__.startswith("_"):
            function.__name__ = name
        function = checked(function, __name__)
    return _core.method(function)


def of_type(kind: type[Tensor], own: Tensor, requires_grad: bool) -> Tensor:
    """The leaf `own` as a tensor of that class, whose __init__ is not called."""
    if kind is not Tensor:
        out = kind.__new__(kind)
        Tensor.__init__(out, own)
        own = out
    if own.requires_grad != requires_grad:
        own.requires_grad = requires_grad
    return own


def _copy(self: Tensor) -> Tensor:
    """Implements copy.copy: a leaf that shares the memory, without history and gradient."""
    out = of_type(type(self), ops["detach"](self), self.requires_grad)
    if _core.has_attributes(self):
        out.__dict__.update(self.__dict__)
    return out


class Moving(dict[int, Any]):
    """A memo of copy.deepcopy that causes tensors to be copied to another place, as `move` does."""

    def __init__(self, move: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.move = move


def copied_for(x: Tensor, memo: dict[int, Any]) -> Tensor:
    """A copy of the tensor without history, in the place that the memo determines or in the tensor's
    session."""
    return memo.move(ops["detach"](x)) if isinstance(memo, Moving) else ops["clone"](ops["detach"](x))


def _deepcopy(self: Tensor, memo: dict[int, Any]) -> Tensor:
    if not self.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol")
    known = memo.get(id(self))
    if known is not None:
        return known  # type: ignore[no-any-return]
    out = memo[id(self)] = of_type(type(self), copied_for(self, memo), self.requires_grad)
    if self.grad is not None:
        out.grad = copy.deepcopy(self.grad, memo)
    if _core.has_attributes(self):
        out.__dict__.update(copy.deepcopy(self.__dict__, memo))
    return out


def _number(self: Tensor) -> Any:
    if self.numel() != 1:
        raise ValueError("only one element tensors can be converted to Python scalars")
    return self.item()


def _reversed(self: Tensor) -> Tensor:
    return self if self.dim() == 0 else self.flip(0)


def _format(self: Tensor, spec: str) -> str:
    """Formats a 0-d tensor as its number (mostly in messages about a loss)."""
    if self.dim() == 0 and not self.is_meta and (spec or type(self) is Tensor):
        return format(self.item(), spec)
    return format(text_of(self), spec)
