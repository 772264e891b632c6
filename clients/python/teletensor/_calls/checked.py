"""Wraps public functions that are written in Python so that they behave like the ops of the catalog: the
annotations say which parameters are a Tensor, an int or a bool, and other types raise TypeError; NumPy's
parameter names are accepted; a wrapped function that is an attribute of a class does not bind to instances.
Only calls from outside the package are checked; calls inside it use the plain functions."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, MutableMapping
from types import FunctionType
from typing import Any

from .. import _core

__all__ = ["attach", "checked", "named"]

_KINDS = {"Tensor": "t", "Tensor | None": "T", "int": "i", "bool": "b"}


def checked(function: Callable[..., Any], home: str) -> Callable[..., Any]:
    """Returns the function as the module named `home` exports it."""
    plain = inspect.unwrap(function)
    for each in (function, plain):  # Python's texts about arguments have this name
        each.__qualname__ = each.__name__
    code = plain.__code__
    names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
    kinds = "".join(_KINDS.get(plain.__annotations__.get(name, ""), " ") for name in names)
    made: Callable[..., Any] = _core.checked(function, home, list(names), kinds, code.co_argcount,
                                             "quick" in vars(function))
    return made


def exporting(space: MutableMapping[str, Any]) -> str:
    """The name of the module from which a program takes the names of this namespace."""
    name: str = space["__name__"]
    return name.removesuffix("._api")


def attach(space: MutableMapping[str, Any], names: Iterable[str]) -> None:
    """Replaces the functions of a module's namespace that are written in Python by their wrapped forms."""
    for name in names:
        if type(function := space[name]) is FunctionType:  # isfunction() is also true of a wrapped function
            space[name] = checked(function, exporting(space))


def named(home: str, name: str) -> Any:
    """Returns the function of that name in that module; copying and unpickling find a wrapped function by
    it."""
    return getattr(importlib.import_module(home), name)
