"""Public functions written in Python are wrapped where a program enters, so that they behave as the
catalog's ops do: they say by their annotations which parameters are a Tensor, an int or a bool, and raise
TypeError for anything else; calls may use NumPy's names of parameters; as attributes of a class they do not
bind. Calls inside the package go to the functions themselves."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, MutableMapping
from types import FunctionType
from typing import Any

from . import _core

__all__ = ["attach", "checked", "named"]

_KINDS = {"Tensor": "t", "Tensor | None": "T", "int": "i", "bool": "b"}


def checked(function: Callable[..., Any], home: str) -> Callable[..., Any]:
    """The function as the module of that name exports it."""
    plain = inspect.unwrap(function)
    code = plain.__code__
    names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
    kinds = "".join(_KINDS.get(plain.__annotations__.get(name, ""), " ") for name in names)
    made: Callable[..., Any] = _core.checked(function, home, list(names), kinds, code.co_argcount)
    return made


def exporting(space: MutableMapping[str, Any]) -> str:
    """The name of the module from which a program takes the names of this namespace."""
    name: str = space["__name__"]
    return name.removesuffix("._api")


def attach(space: MutableMapping[str, Any], names: Iterable[str]) -> None:
    """Wraps the functions of a module's namespace that are written in Python."""
    for name in names:
        if type(function := space[name]) is FunctionType:  # of a wrapped one isfunction() is true, too
            space[name] = checked(function, exporting(space))


def named(home: str, name: str) -> Any:
    """The function of that name in that module; what a copied or unpickled one is found by."""
    return getattr(importlib.import_module(home), name)
