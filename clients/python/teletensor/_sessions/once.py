"""Makes sure that the package is imported only once in a process.

The native part cannot be loaded twice, so a program that removes the modules from `sys.modules` and imports
the package again gets an ImportError. The modules of the first import stay usable: modules that they import
only when needed are still found.
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
    """An import hook that is called for each module that is not in `sys.modules`."""

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}

    def keep(self) -> None:
        """Records the modules of the package that are loaded now."""
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
        # The import system then uses the module of the first import, which is put into sys.modules again.
        del sys.modules[module.__name__]
        for name, known in self._modules.items():
            sys.modules.setdefault(name, known)


def _ours(name: str) -> bool:
    return name == _PACKAGE or name.startswith(_PACKAGE + ".")


def _importer() -> str:
    """The name of the module whose import statement caused this call."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name != __name__ and name.partition(".")[0] != "importlib":
            return name
        frame = frame.f_back
    return ""


_first = _FirstImport()


def keep() -> None:
    """Records that the package has been imported."""
    _first.keep()
    if _first not in sys.meta_path:
        sys.meta_path.insert(0, _first)
