"""isinstance() for containers whose elements have types, as PyTorch's scripts use it."""

from __future__ import annotations

import types
import typing
import warnings
from collections.abc import Sequence
from typing import Any

__all__ = ["isinstance"]

_BARE = (list, dict, tuple, typing.List, typing.Dict, typing.Tuple)  # noqa: UP006
_is = isinstance  # the function below has the name of the builtin one


def isinstance(obj: Any, target_type: Any) -> bool:
    """Returns whether obj has the type, or one of a tuple of types: also `list[int]`, `dict[str, Tensor]`,
    `tuple[int, str]` and `Optional[list[int]]`, for which all elements are looked at.

    UserWarning for an empty container, whose elements have no type. RuntimeError for a container type
    without types of elements.
    """
    if _is(target_type, tuple):
        return any(isinstance(obj, each) for each in target_type)
    origin, inner = typing.get_origin(target_type), typing.get_args(target_type)
    if _is(target_type, Sequence):
        raise RuntimeError("The second argument to `jit.isinstance` must be a type or a tuple of types")
    if target_type in _BARE:
        name = target_type.__name__
        raise RuntimeError(f"Attempted to use {name} without a contained type. Please add a contained "
                           f"type, e.g. {name}[{'int, int' if name.lower() == 'dict' else 'int'}]")
    if origin is None:
        return _is(obj, target_type)
    if origin in (typing.Union, types.UnionType):
        return any(obj is None if each is type(None) else isinstance(obj, each) for each in inner)
    if not _is(obj, origin):
        return False
    if not obj:
        warnings.warn("The inner type of a container is lost when calling jit.isinstance in eager mode. "
                      "For example, list[int] would become list and therefore falsely return True for "
                      "list[float] or list[str].", stacklevel=2)
    if origin is dict:
        return all(isinstance(k, inner[0]) and isinstance(v, inner[1]) for k, v in obj.items())
    if origin is tuple:
        return len(obj) == len(inner) and all(map(isinstance, obj, inner))
    return all(isinstance(each, inner[0]) for each in obj)
