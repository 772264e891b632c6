"""What the script compiler knows of values beyond their types: which tensors stand for Python's
numbers, which may be written to in place, and which containers may change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .. import _core
from .._core import Tensor
from .._tree import flatten

__all__ = ["CHANGES", "Values", "tensors_of"]

# Methods that change a list, a dict or a set.
CHANGES = {"append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update",
            "setdefault", "popitem", "add", "discard", "__setitem__", "__delitem__", "__iadd__"}


class Values:
    """Of one compilation."""

    def __init__(self) -> None:
        self._numbers: dict[int, Tensor] = {}  # by id
        self._shared: list[Tensor] = []
        self._outside: list[dict[int, Any]] = [{}]  # containers by id: of the call, then of each block

    # ---- numbers

    def number(self, tensor: Tensor) -> Tensor:
        """Marks a tensor that stands for a number: it is never written to in place."""
        self._numbers[id(tensor)] = tensor
        return tensor

    def is_number(self, value: Any) -> bool:
        """Is it a number in Python?"""
        return isinstance(value, (bool, int, float)) or id(value) in self._numbers

    def computed(self, result: Any, operands: Iterable[Any]) -> Any:
        """The result of an operator: a number if its operands are."""
        if isinstance(result, Tensor) and all(self.is_number(each) for each in operands):
            return self.number(result)
        return result

    # ---- tensors whose memory may have names that the compiler does not see

    def share(self, tensor: Tensor) -> None:
        """Marks what a branch or a loop gives: a copy here, perhaps another variable's tensor in Python."""
        self._shared.append(tensor)

    def may_be_shared(self, tensor: Tensor) -> bool:
        """Is it such a tensor, or a view of one?"""
        return any(_core.one_storage(tensor, each) for each in self._shared)

    # ---- containers

    @contextmanager
    def block(self, variables: dict[str, Any]) -> Iterator[None]:
        """The body of a branch or loop on a tensor: both ways are compiled, or one round, so that a
        container from before must not change in it."""
        self._outside.append(dict(_containers(list(variables.values()))))
        try:
            yield
        finally:
            self._outside.pop()

    def outside(self, value: Any) -> None:
        """Marks containers that live longer than the call: a change at compilation would be made once."""
        self._outside[0].update(_containers(value))

    def is_outside(self, container: Any) -> bool:
        """Is it one that must not change here?"""
        return any(id(container) in each for each in self._outside)


def _containers(value: Any) -> Iterator[tuple[int, Any]]:
    if isinstance(value, (list, tuple, dict, set)):
        yield id(value), value
        for each in value.values() if isinstance(value, dict) else value:
            yield from _containers(each)


def tensors_of(values: Iterable[Any]) -> list[Tensor]:
    """The tensors in the values, and in containers among them."""
    return [leaf for leaf in flatten(list(values))[0] if isinstance(leaf, Tensor)]
