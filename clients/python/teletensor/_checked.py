"""Kinds of arguments, looked at where a program enters: public functions written in Python say by their
annotations which parameters are a Tensor, an int or a bool, and raise TypeError for anything else, as the
catalog's ops do. Calls inside the package go to the functions themselves."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from . import _core

__all__ = ["attach", "checked", "named"]

_KINDS = {"Tensor": "t", "Tensor | None": "T", "int": "i", "bool": "b"}
_RENAMED = {"dim", "dims", "keepdim", "input", "other"}  # by NumPy's names too: _core/keywords.h


def checked(function: Callable[..., Any], home: str) -> Callable[..., Any]:
    """A callable that checks the kinds of the arguments and takes NumPy's names of the parameters.

    The function itself where it has no parameter of such a kind and none with such a name.
    """
    plain = inspect.unwrap(function)
    code = plain.__code__
    names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
    kinds = "".join(_KINDS.get(plain.__annotations__.get(name, ""), " ") for name in names)
    if not kinds.strip() and _RENAMED.isdisjoint(names):
        return function
    made: Callable[..., Any] = _core.checked(function, home, list(names), kinds, code.co_argcount)
    return made


def attach(space: MutableMapping[str, Any], names: Iterable[str]) -> None:
    """Puts looks at arguments before the functions of a module's namespace that are written in Python."""
    for name in names:
        if inspect.isfunction(function := space[name]):
            space[name] = checked(function, space["__name__"])


def named(home: str, name: str) -> Any:
    """The function of that name in that module; what a copied or unpickled one is found by."""
    return getattr(importlib.import_module(home), name)
