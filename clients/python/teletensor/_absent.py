"""What a module says of a name that it has not: some are modules that come with their first use; of the
others most are PyTorch's, and a page lists those. And what an import says of such a module."""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any

from . import _paths

__all__ = ["HINT", "attach"]

HINT = "docs/names.md lists which of PyTorch's names teletensor has and which not"


def attach(space: MutableMapping[str, Any]) -> None:
    """Lets the module of that namespace import such modules, and name the page in its AttributeError."""
    module = space["__name__"]

    def missing(name: str) -> Any:
        found = _paths.attribute(module, name)
        if found is not None:
            return found
        text = f"module {module!r} has no attribute {name!r}"
        if not name.startswith("_") or name.startswith("_foreach_"):
            text += f": {HINT}"
        raise AttributeError(text, name=name, obj=sys.modules[module])

    space["__getattr__"] = missing
