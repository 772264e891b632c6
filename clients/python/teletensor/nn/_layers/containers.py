"""Modules that contain modules: Sequential, ModuleList, ModuleDict."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

from ..module import Module, _indent

__all__ = ["ModuleDict", "ModuleList", "Sequential"]

S = TypeVar("S", bound="_Numbered")


class _Numbered(Module):
    """Base class of modules whose submodules are named "0", "1", ..."""

    def _name_at(self, index: int) -> str:
        index = operator.index(index)
        length = len(self)
        if not -length <= index < length:
            raise IndexError(f"index {index} is out of range for {length} modules")
        return list(self._module_names)[index]

    def _replace_all(self, modules: Iterable[Module]) -> None:
        modules = list(modules)
        for name in list(self._module_names):
            delattr(self, name)
        for i, module in enumerate(modules):
            self.add_module(str(i), module)

    def __len__(self) -> int:
        return len(self._module_names)

    def __iter__(self) -> Iterator[Module]:
        return iter([self.__dict__[name] for name in self._module_names])

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._name_at(index), module)

    def __delitem__(self, index: int | slice) -> None:
        modules = list(self)
        if isinstance(index, slice):
            del modules[index]
        else:
            self._name_at(index)
            del modules[index]
        self._replace_all(modules)

    def append(self: S, module: Module) -> S:
        """Adds a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self: S, modules: Iterable[Module]) -> S:
        """Adds modules at the end."""
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Any:
        """Adds a module before position `index`."""
        modules = list(self)
        modules.insert(index, module)
        self._replace_all(modules)

    def pop(self, index: int = -1) -> Module:
        """Removes and returns the module at `index`."""
        module: Module = self.__dict__[self._name_at(index)]
        del self[index]
        return module


class Sequential(_Numbered):
    """Calls its modules one after the other, each with the result of the previous one.

    Takes modules, or one mapping of names to modules.

    >>> tt.nn.Sequential(tt.nn.Linear(2, 3), tt.nn.ReLU())
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): ReLU()
    )
    """

    @overload
    def __init__(self, *args: Module) -> None: ...
    @overload
    def __init__(self, args: Mapping[str, Module], /) -> None: ...
    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], Mapping):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for i, module in enumerate(args):
                self.add_module(str(i), module)

    def insert(self, index: int, module: Module) -> Sequential:
        """Adds a module before position `index`; returns the Sequential."""
        super().insert(index, module)
        return self

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> Sequential: ...
    def __getitem__(self, index: int | slice) -> Module:
        if isinstance(index, slice):
            names = list(self._module_names)[index]
            return type(self)(OrderedDict((name, self.__dict__[name]) for name in names))
        module: Module = self.__dict__[self._name_at(index)]
        return module

    def forward(self, input: Any) -> Any:
        own = self.__dict__
        for name in self._module_names:
            input = own[name](input)
        return input

    def __add__(self, other: Sequential) -> Sequential:
        if not isinstance(other, Sequential):
            raise ValueError(
                "add operator supports only objects of Sequential class, but "
                f"{type(other).__name__} is given."
            )
        return Sequential(*self, *other)

    def __iadd__(self, other: Sequential) -> Sequential:
        if not isinstance(other, Sequential):
            raise ValueError(
                "add operator supports only objects of Sequential class, but "
                f"{type(other).__name__} is given."
            )
        return self.extend(other)

    def __mul__(self, other: int) -> Sequential:
        _check_times(other)
        return Sequential(*list(self) * other)

    __rmul__ = __mul__

    def __imul__(self, other: int) -> Sequential:
        _check_times(other)
        modules = list(self)
        for _ in range(other - 1):
            self.extend(modules)
        return self


def _check_times(count: int) -> None:
    if not isinstance(count, int):
        raise TypeError(f"unsupported operand type(s) for *: Sequential and {type(count)}")
    if count <= 0:
        raise ValueError(f"Non-positive multiplication factor {count} for Sequential")


class ModuleList(_Numbered):
    """A list of modules, which are registered as submodules; it has no forward."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> ModuleList: ...
    def __getitem__(self, index: int | slice) -> Module:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        module: Module = self.__dict__[self._name_at(index)]
        return module

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[Module]) -> ModuleList:
        return self.extend(other)

    def __repr__(self) -> str:
        """Equal adjacent modules are shown once: (0-2): 3 x Linear(...)."""
        if len(self) == 0:
            return self._get_name() + "()"
        runs: list[tuple[int, int, str]] = []
        for i, module in enumerate(self):
            text = repr(module)
            if runs and runs[-1][2] == text:
                runs[-1] = (runs[-1][0], i, text)
            else:
                runs.append((i, i, text))
        lines = [
            _indent(
                f"({first}): {text}"
                if first == last
                else f"({first}-{last}): {last - first + 1} x {text}",
                2,
            )
            for first, last, text in runs
        ]
        return self._get_name() + "(\n  " + "\n  ".join(lines) + "\n)"


class ModuleDict(Module):
    """A dict of modules in insertion order, which are registered as submodules; it has no forward."""

    def __init__(
        self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None
    ) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Module:
        if key not in self._module_names:
            raise KeyError(key)
        module: Module = self.__dict__[key]
        return module

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        if key not in self._module_names:
            raise KeyError(key)
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._module_names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._module_names)

    def __contains__(self, key: object) -> bool:
        return key in self._module_names

    def clear(self) -> None:
        """Removes all modules."""
        for key in list(self):
            del self[key]

    def pop(self, key: str) -> Module:
        """Removes and returns the module called `key`."""
        module = self[key]
        del self[key]
        return module

    def keys(self) -> Iterable[str]:
        """The names of the modules."""
        return self._module_names.keys()

    def values(self) -> Iterable[Module]:
        """The modules."""
        return [self[key] for key in self]

    def items(self) -> Iterable[tuple[str, Module]]:
        """Pairs of name and module."""
        return [(key, self[key]) for key in self]

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Adds modules from a mapping or from pairs; modules with the same names are replaced."""
        for key, module in modules.items() if isinstance(modules, Mapping) else modules:
            self[key] = module
