"""One import in a process.

The native part cannot be there twice, so a program that removes the modules from `sys.modules` and imports
the package again gets an ImportError. The modules of the first import go on working: what they import only
when they need it, they find here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["keep"]

_PACKAGE = __name__.partition(".")[0]


class _FirstImport(MetaPathFinder, Loader):
    """Asked for each module that is not in `sys.modules`."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}

    def keep(self) -> None:
        """Holds the modules of the package that are there now."""
        self._modules |= {name: module for name, module in sys.modules.items() if _ours(name)}

    def find_spec(self, name: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self._modules or name in sys.modules:
            return None
        if not _ours(_importer()):
            raise ImportError(
                f"{name} is imported a second time in this process, after its modules were removed from "
                "sys.modules; its native part can be loaded only once. Keep the modules, or start another "
                "process", name=name)
        return ModuleSpec(name, self)

    def exec_module(self, module: ModuleType) -> None:
        # The import system takes what it finds under the name, instead of the new module.
        del sys.modules[module.__name__]
        for name, known in self._modules.items():
            sys.modules.setdefault(name, known)


def _ours(name: str) -> bool:
    return name == _PACKAGE or name.startswith(_PACKAGE + ".")


def _importer() -> str:
    """The name of the module in which the import is that led here."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != __name__ and name.partition(".")[0] != "importlib":
            return name
        frame = frame.f_back
    return ""


_first = _FirstImport()


def keep() -> None:
    """From now on the package is imported."""
    _first.keep()
    if _first not in sys.meta_path:
        sys.meta_path.insert(0, _first)
