"""Attributes and imports of names that a module does not define. Some are submodules that are imported at
their first use; most of the rest are names of PyTorch that teletensor does not have, and the error message
refers to the page of the documentation that lists them."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any

from . import paths as _paths

__all__ = ["HINT", "attach"]

HINT = "docs/names.md lists which of PyTorch's names teletensor has and which not"

# What to use instead of names of PyTorch that programs use often.
_HALF = "complex numbers of half precision are not supported; use complex64"
_EIGHTH = "8-bit floats are not supported; use bfloat16"
_INSTEAD = {"complex32": _HALF, "chalf": _HALF, "float8_e4m3fn": _EIGHTH, "float8_e5m2": _EIGHTH}


def attach(space: MutableMapping[str, Any]) -> None:
    """Lets the module with this namespace import such submodules at their first use, and makes its
    AttributeError refer to the documentation page."""
    module = space["__name__"]

    def missing(name: str) -> Any:
        found = _paths.attribute(module, name)
        if found is not None:
            return found
        text = f"module {module!r} has no attribute {name!r}"
        if name in _INSTEAD:
            text += f": {_INSTEAD[name]}"
        elif not name.startswith("_") or name.startswith("_foreach_"):
            text += f": {HINT}"
        raise AttributeError(text, name=name, obj=sys.modules[module])

    space["__getattr__"] = missing
