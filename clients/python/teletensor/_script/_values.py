"""The facts about values, in addition to their types, that the script compiler tracks: which tensors stand
for Python numbers, which tensors may be written to in place, and which containers may be changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .. import _core
from .._calls.tree import flatten
from .._core import Tensor

__all__ = ["CHANGES", "Values", "tensors_of"]

# Methods that change a list, a dict or a set.
CHANGES = {"append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update",
            "setdefault", "popitem", "add", "discard", "__setitem__", "__delitem__", "__iadd__"}


class Values:
    """The facts about the values of one compilation."""

    def __init__(self) -> None:
        self._numbers: dict[int, Tensor] = {}  # tensors that stand for numbers, by id
        self._shared: list[Tensor] = []
        # containers by id: first those from outside of the call, then those of each block
        self._outside: list[dict[int, Any]] = [{}]

    # ---- numbers

    def number(self, tensor: Tensor) -> Tensor:
        """Marks a tensor that stands for a Python number: it is never written to in place."""
        self._numbers[id(tensor)] = tensor
        return tensor

    def is_number(self, value: Any) -> bool:
        """Returns whether the value is a number in Python."""
        return isinstance(value, (bool, int, float)) or id(value) in self._numbers

    def computed(self, result: Any, operands: Iterable[Any]) -> Any:
        """Marks the result of an operator: it is a number if its operands are."""
        if isinstance(result, Tensor) and all(self.is_number(each) for each in operands):
            return self.number(result)
        return result

    # ---- tensors whose memory may be referred to by variables that the compiler does not know

    def share(self, tensor: Tensor) -> None:
        """Marks a result of a branch or a loop: it is a copy here, but in Python it might be another
        variable's tensor."""
        self._shared.append(tensor)

    def may_be_shared(self, tensor: Tensor) -> bool:
        """Returns whether the tensor is a marked result of a branch or a loop, or a view of one."""
        return any(_core.one_storage(tensor, each) for each in self._shared)

    # ---- containers

    @contextmanager
    def block(self, variables: dict[str, Any]) -> Iterator[None]:
        """Context of the compilation of a branch or loop on a tensor. Both sides of a branch, and one
        iteration of a loop, are compiled, so an earlier container must not be changed in it."""
        self._outside.append(dict(_containers(list(variables.values()))))
        try:
            yield
        finally:
            self._outside.pop()

    def outside(self, value: Any) -> None:
        """Marks containers that outlive the call: a change to them would be made only once, during
        compilation."""
        self._outside[0].update(_containers(value))

    def is_outside(self, container: Any) -> bool:
        """Returns whether the container must not be changed here."""
        return any(id(container) in each for each in self._outside)


def _containers(value: Any) -> Iterator[tuple[int, Any]]:
    if isinstance(value, (list, tuple, dict, set)):
        yield id(value), value
        for each in value.values() if isinstance(value, dict) else value:
            yield from _containers(each)


def tensors_of(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among the values, and in containers among them."""
    return [leaf for leaf in flatten(list(values))[0] if isinstance(leaf, Tensor)]
