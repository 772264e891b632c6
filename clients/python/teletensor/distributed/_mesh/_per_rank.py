"""PerRank: one object that stands for a separate object on each rank."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ._rank import current_rank

if TYPE_CHECKING:
    from ._mesh import Mesh

__all__ = ["PerRank"]


class PerRank(Sequence[Any]):
    """One object for each rank of a mesh: `values[i]` is that of rank i, and `len` and iteration are over
    the ranks.

    In the code of a rank (mesh.run, mesh.spawn, mesh.compile) its attributes, calls and arithmetic are
    those of the rank's own object, `here`. If it is an argument of mesh.run, spawn or compile, each rank
    gets its own object. RuntimeError for `here`, attributes, calls and arithmetic outside of a rank's
    code."""

    def __init__(self, mesh: Mesh, values: Iterable[Any]) -> None:
        self._mesh, self._values = mesh, tuple(values)

    @property
    def here(self) -> Any:
        """The object of the rank whose code is running."""
        rank = current_rank(self._mesh)
        if rank is None:
            raise RuntimeError(
                f"{self!r} has an object for each rank of {self._mesh._title()}, and this is the code of "
                "none: "
                "use it in mesh.run, mesh.spawn or mesh.compile, or take one rank's by its number, [0]"
            )
        return self._values[rank.index]

    def __getitem__(self, rank: Any) -> Any:
        return self._values[rank]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __repr__(self) -> str:
        kinds = list(dict.fromkeys(type(each).__name__ for each in self._values))
        return f"<{' or '.join(kinds)} on each of {len(self._values)} ranks>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_mesh", "_values"):
            raise AttributeError(name)
        return getattr(self.here, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.here(*args, **kwargs)

    def __neg__(self) -> Any:
        return -self.here


def _arithmetic(operation: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The methods for an operator with a PerRank on its left and on its right."""
    return (lambda self, other: operation(self.here, other),
            lambda self, other: operation(other, self.here))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    _left, _right = _arithmetic(getattr(operator, _name))
    setattr(PerRank, f"__{_name}__", _left)
    setattr(PerRank, f"__r{_name}__", _right)


def of_rank(value: Any, index: int) -> Any:
    """An argument with every PerRank, also within tuples, lists and dicts, replaced by its element for rank
    `index`."""
    if isinstance(value, PerRank):
        return value[index]
    if type(value) in (tuple, list):
        return type(value)(of_rank(each, index) for each in value)
    if type(value) is dict:
        return {key: of_rank(each, index) for key, each in value.items()}
    return value
