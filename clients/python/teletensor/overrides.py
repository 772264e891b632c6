"""`__torch_function__`: how functions of a library give way to classes that stand for tensors.

This package's own functions do not ask for it: they take tensors. Functions of a program that follow
PyTorch's protocol (`if has_torch_function(...): return handle_torch_function(...)`) work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from . import _absent
from ._core import Tensor

__all__ = ["handle_torch_function", "has_torch_function", "is_tensor_like"]


def is_tensor_like(inp: Any) -> bool:
    """Is it a tensor, or does its class define `__torch_function__`?"""
    return isinstance(inp, Tensor) or hasattr(type(inp), "__torch_function__")


def _overriding(arguments: Iterable[Any]) -> list[Any]:
    """One argument of each class that defines `__torch_function__`, subclasses before their bases."""
    found: list[Any] = []
    for argument in arguments:
        kind = type(argument)
        if hasattr(kind, "__torch_function__") and kind not in map(type, found):
            place = next((i for i, other in enumerate(found) if issubclass(kind, type(other))), len(found))
            found.insert(place, argument)
    return found


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """Does the class of one of the arguments define `__torch_function__`?"""
    return bool(_overriding(relevant_args))


def handle_torch_function(
    public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """What the first class whose `__torch_function__` does not return NotImplemented makes of the call
    public_api(*args, **kwargs). TypeError where none does."""
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
