"""Support of einops: when a program imports einops, a backend for teletensor is added to its list of
backends."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

from .. import _functions as f
from .._core import Tensor
from .convert import tensor

__all__ = ["register"]

_MODULE = "einops._backends"


class _Backend:
    """The operations that einops needs from a backend; `_define` adds the base class."""

    framework_name = __name__.partition(".")[0]

    def is_appropriate_type(self, value: Any) -> bool:
        return isinstance(value, Tensor)

    def from_numpy(self, x: Any) -> Tensor:
        return tensor(x)

    def to_numpy(self, x: Tensor) -> Any:
        return x.detach().numpy()

    def arange(self, start: int, stop: int) -> Tensor:
        return f.arange(start, stop)

    def reduce(self, x: Tensor, operation: str, axes: Any) -> Tensor:
        if operation in ("min", "max", "sum", "mean"):
            made: Tensor = getattr(x, {"min": "amin", "max": "amax"}.get(operation, operation))(dim=axes)
            return made
        for axis in sorted(axes, reverse=True):  # any, all and prod reduce one dimension per call
            x = getattr(x, operation)(dim=axis)
        return x

    def transpose(self, x: Tensor, axes: Any) -> Tensor:
        return x.permute(axes)

    def stack_on_zeroth_dimension(self, tensors: list[Tensor]) -> Tensor:
        return f.stack(tensors)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        return x.unsqueeze(new_position)

    def add_axes(self, x: Tensor, n_axes: int, pos2len: dict[int, int]) -> Tensor:
        sizes = [-1] * n_axes
        for place, size in pos2len.items():
            x, sizes[place] = x.unsqueeze(place), size
        return x.expand(sizes)

    def tile(self, x: Tensor, repeats: Any) -> Tensor:
        return x.repeat(repeats)

    def concat(self, tensors: list[Tensor], axis: int) -> Tensor:
        return f.cat(tensors, axis)

    def is_float_type(self, x: Tensor) -> bool:
        return x.dtype.is_floating_point

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        return f.einsum(pattern, *x)


def _define(module: ModuleType) -> None:
    # einops finds its backends among the subclasses of its class
    vars(module)["TeletensorBackend"] = type("TeletensorBackend", (_Backend, module.AbstractBackend), {})


class _Finder(importlib.abc.MetaPathFinder):
    """An import hook that finds einops's module as usual and adds the backend after the module has run."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Returns the spec for einops's module with an extended loader, and None for all other modules."""
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_define(module: ModuleType) -> None:
                run(module)
                _define(module)

            spec.loader.exec_module = run_and_define  # type: ignore[method-assign]
        return spec


def register() -> None:
    """Adds the backend to einops now if einops has been imported, or when it is imported later."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        _define(module)
    else:
        sys.meta_path.insert(0, _Finder())
