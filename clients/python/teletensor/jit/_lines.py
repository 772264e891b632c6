"""Second derivatives of functions that run as programs: the lines of the function, or the steps of its
program, run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import _core
from .._calls.tree import flatten, unflatten
from .._core import Tensor
from ..autograd import grad

if TYPE_CHECKING:
    from ._capture import Entry

__all__ = ["Again", "Lines"]


class Lines:
    """A function with the arguments of one of its calls, to be run line by line."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.function = function
        self.training = getattr(function, "training", None)
        leaves, self.spec = flatten((list(args), kwargs))
        self.leaves = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def run(self, tensors: Sequence[Tensor]) -> list[Any]:
        """The leaves of the function's result, with `tensors` in place of the tensors among its
        arguments."""
        leaves = list(self.leaves)
        for i, tensor in zip(self.places, tensors, strict=True):
            leaves[i] = tensor
        args, kwargs = unflatten(leaves, self.spec)
        leaves, _ = flatten(self.function(*args, **kwargs))
        return leaves


class Again:
    """A recorded call whose gradients may have to be differentiated again. Its `lines` run again, or,
    without them, the steps of its program."""

    def __init__(self, entry: Entry, inputs: Sequence[Tensor], numbers: list[Any],
                 lines: Lines | None) -> None:
        self._entry, self._numbers, self._lines = entry, numbers, lines
        self._drawn = _core.rng_state()
        self._places = [place for place, _ in entry.program.sources]
        # For each parameter, the tensor that it reads if it is not an argument.
        self._outside = [t if place < 0 else None
                         for place, t in zip(self._places, inputs, strict=True)]
        self._versions = [0 if t is None else t._version for t in self._outside]

    def gradients(self, tensors: list[Tensor], seeds: Sequence[Tensor | None]) -> list[Any]:
        """The gradients that the entry wants, recorded. `tensors` are the arguments of the call."""
        entry = self._entry
        results = [entry.program.outputs[o][1] for o in entry.differentiated]
        needed = range(len(self._outside)) if self._lines else entry.program.parameters_of(results)
        for i in needed:
            t = self._outside[i]
            if t is not None and t._version != self._versions[i]:
                self._refuse("has been modified by an inplace operation")
        if self._lines is not None:
            return self._of_lines(self._lines, tensors, seeds)
        return self._of_steps(results, tensors, seeds)

    def _of_steps(self, results: list[int], tensors: list[Tensor], seeds: Sequence[Tensor | None]
                  ) -> list[Any]:
        entry, inputs = self._entry, self._inputs(tensors)
        cut = [t.detach() for t in inputs]
        for w in entry.wanted:
            cut[w].requires_grad_(inputs[w].requires_grad)
        made = entry.program.expand(cut, self._numbers, self._drawn, results)
        return _gradients([inputs[w] for w in entry.wanted], [cut[w] for w in entry.wanted], made, seeds)

    def _of_lines(self, lines: Lines, tensors: list[Tensor], seeds: Sequence[Tensor | None]
                  ) -> list[Any]:
        entry = self._entry
        if getattr(lines.function, "training", None) != lines.training:
            self._refuse("is in another mode (train(), eval())")
        outside = [t for t in (self._outside[w] for w in entry.wanted) if t is not None]
        if len(outside) > 1 and not all(t.is_leaf for t in outside):
            self._refuse("was computed, maybe from another of them")
        # The history of the arguments is cut here: their gradients continue there by themselves.
        cut = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
        state = _core.rng_state()
        _core.set_rng_state(*self._drawn)
        try:
            results = lines.run(cut)
        finally:
            _core.set_rng_state(*state)
        real, own = ([inputs[w] for w in entry.wanted]
                     for inputs in (self._inputs(tensors), self._inputs(cut)))
        return _gradients(real, own, [results[entry.tensors[o]] for o in entry.differentiated], seeds)

    def _inputs(self, arguments: Sequence[Tensor]) -> list[Tensor]:
        """The tensor for each parameter, with these arguments."""
        return [arguments[place] if t is None else t
                for place, t in zip(self._places, self._outside, strict=True)]

    def _refuse(self, what: str) -> None:
        raise RuntimeError(
            "the second derivative (create_graph=True) of a captured or scripted function runs it again, "
            f"and one of the variables that it reads from outside {what}: hand it over as an argument, or "
            "call the function itself")


def _gradients(inputs: Sequence[Tensor], cut: Sequence[Tensor], made: Sequence[Any],
               seeds: Sequence[Tensor | None]) -> list[Any]:
    """The gradients of `made`, which was computed from `cut`, with respect to `inputs`, for which `cut`
    stands."""
    pairs = [(root, seed) for root, seed in zip(made, seeds, strict=True)
             if seed is not None and isinstance(root, Tensor) and root.requires_grad]
    if not pairs:
        return [None] * len(inputs)
    roots = [root for root, _ in pairs]
    given = [seed for _, seed in pairs]
    if not _core.grad_mode():
        return list(grad(roots, cut, given, retain_graph=True, allow_unused=True))
    fresh = [seed.detach().requires_grad_() for seed in given]
    found = grad(roots, cut, fresh, create_graph=True, allow_unused=True)
    return _joined([*inputs, *given], [*cut, *fresh], found)


def _joined(inputs: Sequence[Tensor], cut: Sequence[Tensor], made: Sequence[Any]) -> list[Any]:
    """`made`, which was computed from `cut`, with a history that begins at `inputs`."""
    recorded = [i for i, t in enumerate(made) if t is not None and t.requires_grad]
    ways = [(a, b) for a, b in zip(inputs, cut, strict=True) if a.requires_grad]
    out = [t if t is None else t.detach() for t in made]
    if not recorded or not ways:
        return out
    values = [made[i] for i in recorded]

    def run(node: Any, grads: list[Tensor | None]) -> list[Any]:
        return _gradients([a for a, _ in ways], [b for _, b in ways], values, grads)

    named, _, _ = _core.function_node([a for a, _ in ways], [v.detach() for v in values], [], run,
                                      "CompiledBackwardBackward")
    for i, tensor in zip(recorded, named, strict=True):
        out[i] = tensor
    return out
