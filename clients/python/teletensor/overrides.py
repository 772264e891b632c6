"""The `__torch_function__` protocol, by which functions of a library let classes that imitate tensors
override them.

A function of this package calls it if an argument is not a tensor and its class, or that of an element of a
list or a tuple among the arguments, defines `__torch_function__`. Tensors, and subclasses of Tensor, do not
override functions. Functions of a program can follow PyTorch's protocol
(`if has_torch_function(...): return handle_torch_function(...)`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ._core import Tensor
from ._names import absent as _absent

__all__ = ["handle_torch_function", "has_torch_function", "is_tensor_like"]


def is_tensor_like(inp: Any) -> bool:
    """Returns whether the object is a tensor or its class defines `__torch_function__`."""
    return isinstance(inp, Tensor) or hasattr(type(inp), "__torch_function__")


def _overriding(arguments: Iterable[Any]) -> list[Any]:
    """One argument of each class that defines `__torch_function__`, subclasses before their base
    classes."""
    found: list[Any] = []
    for argument in arguments:
        kind = type(argument)
        if hasattr(kind, "__torch_function__") and kind not in map(type, found):
            place = next((i for i, other in enumerate(found) if issubclass(kind, type(other))), len(found))
            found.insert(place, argument)
    return found


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """Returns whether the class of one of the arguments defines `__torch_function__`."""
    return bool(_overriding(relevant_args))


def handle_torch_function(
    public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """Returns the result of the first `__torch_function__` that does not return NotImplemented for the call
    public_api(*args, **kwargs). TypeError if all of them return it."""
    overriding = _overriding(relevant_args)
    kinds = tuple(map(type, overriding))
    for argument in overriding:
        result = type(argument).__torch_function__(public_api, kinds, args, kwargs)
        if result is not NotImplemented:
            return result
    name = f"{public_api.__module__}.{public_api.__name__}"
    raise TypeError(
        f"no implementation found for {name!r} on types that implement __torch_function__: "
        f"{[kind.__name__ for kind in kinds]}"
    )


_absent.attach(globals())
