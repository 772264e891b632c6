"""Helpers that the modules of functions share."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from .. import _core
from .._calls.out import store
from .._core import Tensor, ops
from .._tensors.convert import dtype_of, resolve_device
from .._tensors.memory_format import strided

__all__ = [
    "Function", "Size", "batched_as", "factory", "function_only", "indices_of", "is_method", "made",
    "options", "owned", "quick", "refusing", "sizes_of", "tensors_of", "tied", "wrap_dim",
]
Size = Sequence[int]
Function = TypeVar("Function", bound=Callable[..., Any])


def refusing(x: Tensor, name: str) -> Tensor:
    """x as an operand of the function `name`, which is not differentiable: the result requires grad if x
    does, and a backward pass through it raises an error."""
    inexact = x.dtype.is_floating_point or x.dtype.is_complex
    return ops["refuse_gradient"](x, name) if inexact else x


def tied(value: Tensor, source: Tensor) -> Tensor:
    """Returns value, a piecewise constant function of source, as a tensor that depends on source: its
    derivative with respect to source (whose shape broadcasts to value's) is zero, or an error if source is
    the result of `refusing`."""
    if not (source.requires_grad and _core.grad_mode()):
        return value
    return ops["where"](ops["full"](True, (), _core.bool, value.device), value, source)


def batched_as(source: Tensor, new: Tensor) -> Tensor:
    """Returns new; within vmap, if source differs between the samples, returns one copy of new per sample,
    into which values that differ between samples can then be written."""
    if not _core.depth() or _core.innermost([source]) is None or source.numel() == 0:
        return new
    one = ops["slice"](ops["reshape"](ops["detach"](source), (-1,)), 0, 0, 1, 1)
    some = ops["reshape"](ops["ne"](one, 0), ())
    return ops["where"](ops["logical_xor"](some, some), new, new)


def function_only(function: Function) -> Function:
    """Marks a function whose first parameter is a tensor but which is not a method of Tensor."""
    function.__dict__["function_only"] = True
    return function


def quick(function: Function) -> Function:
    """Marks a function whose frequent calls from outside the package the native code performs
    (`quick_of` in _core/quick.h). All other calls run the function."""
    function.__dict__["quick"] = True
    return function


def is_method(function: Any) -> bool:
    """Returns whether the function becomes a method: its first parameter is a Tensor and it is not
    marked."""
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_argcount) and "function_only" not in vars(function) and (
        function.__annotations__.get(code.co_varnames[0]) in ("Tensor", Tensor))


# functions whose numbers fill an `out` tensor of any shape
_SHAPED_BY_OUT = ("arange", "linspace", "logspace", "range")


def factory(function: Function) -> Function:
    """Decorates a function that creates tensors with the parameters that all such functions of PyTorch
    have: `layout`, which must be strided; `pin_memory`, which has no effect; `out`, whose dtype the result
    then has; and `size` as a keyword if the sizes are separate arguments."""
    several = bool(function.__code__.co_flags & inspect.CO_VARARGS)

    @functools.wraps(function)
    def make(*args: Any, layout: Any = None, pin_memory: bool = False, out: Tensor | None = None,
             **options: Any) -> Any:
        if layout is not None and layout is not strided:
            raise RuntimeError(f"{function.__name__}: layout must be strided, not {layout!r}")
        if "dtype" in options:
            options["dtype"] = dtype_of(options["dtype"])
        if several and "size" in options:
            if args:
                raise TypeError(f"{function.__name__}() got multiple values for argument 'size'")
            args = (options.pop("size"),)
        if out is None:
            return function(*args, **options)
        if options.get("dtype", out.dtype) not in (None, out.dtype):
            raise RuntimeError(f"dtype {options['dtype']} does not match dtype of out parameter "
                               f"({out.dtype})")
        found = function(*args, **{**options, "dtype": out.dtype})
        if function.__name__ in _SHAPED_BY_OUT and found.numel() == out.numel():
            found = ops["reshape"](found, out._shape)
        return store(function.__name__, out, found)

    return cast(Function, make)


def owned(x: Tensor) -> Tensor:
    """x with memory of its own: a row-major copy if x is a view."""
    return ops["contiguous"](x) if x._is_view() else x


def sizes_of(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    """The sizes of a call f(2, 3), f((2, 3)) or f([2, 3])."""
    if len(sizes) == 1 and hasattr(sizes[0], "__iter__") and getattr(sizes[0], "ndim", 1) != 0:
        sizes = tuple(sizes[0])
    try:
        return tuple(map(operator.index, sizes))
    except TypeError:
        raise TypeError(f"sizes must be integers, not {sizes!r:.80}") from None


def tensors_of(name: str, given: tuple[Any, ...]) -> list[Tensor]:
    """The tensors of a call f(a, b) or f([a, b]); TypeError for an argument that is not a tensor."""
    found = given[0] if len(given) == 1 and isinstance(given[0], (list, tuple)) else given
    for x in found:
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}(): argument 'tensors' must be tuple of Tensors, "
                            f"not {_core.described(x)}")
    return list(found)


def indices_of(index: Tensor, rank: int | None = None) -> Tensor:
    """Returns index, converted if it is empty: an empty index may have any dtype, and any shape if `rank`
    is given."""
    if index.numel():
        return index
    index = index.to(_core.int64)
    return index if rank in (None, index.dim()) else ops["reshape"](index, (0,) * max(rank, 1))


def wrap_dim(dim: int, rank: int) -> int:
    """dim counted from the front; IndexError if it is out of range. A 0-d tensor has the dims 0 and -1."""
    dim, span = operator.index(dim), max(rank, 1)
    if not -span <= dim < span:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-span}, {span - 1}], "
                         f"but got {dim})")
    return dim % span


def options(dtype: Any, device: Any) -> tuple[Any, Any]:
    """The dtype and the device of a new tensor, with the defaults filled in."""
    return (_core.default_dtype() if dtype is None else dtype,
            resolve_device(device))


def made(x: Tensor, requires_grad: bool) -> Tensor:
    """Returns x, a new tensor, with its requires_grad flag set."""
    if requires_grad:
        x.requires_grad = True
    return x
