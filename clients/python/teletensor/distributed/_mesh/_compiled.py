"""Captured functions of a mesh, of which one call is one command for each rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...jit._compiled import Compiled, rounds
from ._per_rank import PerRank, of_rank
from ._rank import current_rank

if TYPE_CHECKING:
    from ._mesh import Mesh

__all__ = ["MeshCompiled"]


class MeshCompiled:
    """A function that each rank captures at its first call, as `teletensor.compile` does, and then runs as
    one command of its session. Created by `Mesh.compile`.

    If it is called in the code of a rank it runs on this rank. Otherwise it runs on all ranks, each of
    which gets its own element of every PerRank among the arguments, and returns a PerRank of the
    results."""

    def __init__(self, mesh: Mesh, function: Callable[..., Any], name: str | None = None) -> None:
        functools.update_wrapper(self, function, updated=())
        self._mesh = mesh
        self._ranks = [Compiled(function, name) for _ in mesh]
        self.name = self._ranks[0].name

    def __repr__(self) -> str:
        return f"<{self.name!r}, compiled for {self._mesh._title()}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        rank = current_rank(self._mesh)
        if rank is not None:
            return self._ranks[rank.index](*of_rank(args, rank.index), **of_rank(kwargs, rank.index))
        return self._mesh._each(
            lambda index: self._ranks[index](*of_rank(args, index), **of_rank(kwargs, index))
        )

    def repeat(self, n: int, *args: Any, data: Any = None) -> Iterator[PerRank]:
        """Runs the function n times on all ranks, and yields the outputs of each iteration as a PerRank:
        tensors, and numbers for 0-d tensors. `data` and the arguments are those of `Compiled.repeat`, where
        each rank gets its own element of every PerRank. One message to a rank starts up to 64 iterations,
        whose outputs are sent while later ones run."""
        parts = []
        for rank in self._mesh:
            with rank.as_current():
                parts.append(
                    rounds(
                        self._ranks[rank.index], n, of_rank(data, rank.index), of_rank(args, rank.index)
                    )
                )
        before: list[Iterator[Any]] | None = None
        while True:
            # the next iteration of every rank is issued before any outputs are read
            issued = self._mesh._each(lambda index: next(parts[index], None))
            if before is not None:
                yield from self._outputs(before)
            if issued[0] is None:
                return
            before = list(issued)

    def _outputs(self, parts: Sequence[Iterator[Any]]) -> Iterator[PerRank]:
        while True:
            values = []
            for rank, part in zip(self._mesh, parts, strict=True):
                try:
                    values.append(next(part))
                except StopIteration:
                    return
                except Exception as error:
                    self._mesh._raised(error, rank)
                    raise
            yield PerRank(self._mesh, values)
