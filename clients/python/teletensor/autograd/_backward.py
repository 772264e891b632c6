"""The functions backward and grad: gradients of recorded operations."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from .. import _core
from .._connection.progress_bar import watched
from .._core import Tensor
from ._elsewhere import may_return, run_all
from ._modes import no_grad
from .graph import GradientEdge, _tensor_at

__all__ = ["backward", "backward_stream", "grad"]


def _list(value: Any) -> list[Any]:
    """A list of tensors from one or several tensors; edges are replaced by the tensors for which they
    stand."""
    if value is None:
        return []
    if isinstance(value, Tensor) or hasattr(value, "_gradient"):
        return [value]
    several = [value] if isinstance(value, GradientEdge) else value
    return [_tensor_at(each) if isinstance(each, GradientEdge) else each for each in several]


class Follower(Protocol):
    """An object that is told about the gradients of each backward, such as a DistributedDataParallel."""

    def follows(self, core: Any) -> bool:
        """Returns whether the follower is to be called for the next backward, which runs in the session
        `core` (`_core.Session`)."""

    def gradients_before(self) -> Any:
        """The value that gradients_after() gets as its argument."""

    def gradients_after(self, before: Any) -> None:
        """Called after a backward has added gradients."""


_followers: dict[int, weakref.ref[Follower]] = {}  # by order of registration
_numbers = itertools.count()


def follow(follower: Follower) -> None:
    """Registers a follower, for as long as it is referred to elsewhere."""
    number = next(_numbers)
    # pop(number, gone reference) removes it, without an error if it is absent.
    _followers[number] = weakref.ref(follower, functools.partial(_followers.pop, number))


def followers() -> list[Follower]:
    """The registered followers in the order of registration, which is the same in all ranks of a world."""
    return [found for each in list(_followers.values()) if (found := each()) is not None]


def backward(tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None,
             create_graph: bool = False, inputs: Any = None) -> None:
    """Adds the gradients of `tensors` to .grad of the leaves (or of `inputs` only).

    RuntimeError if no tensor requires grad, if the graph was already used up, or if a gradient has another
    shape than its tensor.
    """
    roots = _list(tensors)
    if not roots:
        raise RuntimeError("backward: no tensors were given")
    seeds = _list(grad_tensors) if grad_tensors is not None else [None] * len(roots)
    if len(seeds) != len(roots):
        raise RuntimeError(
            f"backward: each tensor needs one gradient, got {len(roots)} tensors and {len(seeds)} gradients"
        )
    keep = create_graph if retain_graph is None else retain_graph
    if inputs is None:
        run_all(roots, seeds, keep, lambda some, given, kept: _run(some, given, kept, create_graph))
        return
    leaves = _list(inputs)
    if not leaves:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    _check_sessions(roots, leaves)
    for leaf, g in zip(leaves, _core.backward(roots, seeds, leaves, keep, create_graph, True),
                       strict=True):
        if g is None:
            continue
        if leaf.grad is None:
            leaf.grad = g
        elif create_graph:
            leaf.grad = leaf.grad + g
        else:
            with no_grad():
                leaf.grad.add_(g)


def _run(roots: list[Any], seeds: list[Any], keep: bool, create_graph: bool) -> None:
    """Runs the backward in the session of the roots."""
    if not _followers:
        _core.backward(roots, seeds, None, keep, create_graph, True)
        return
    core = roots[0]._session
    waiting = [(each, each.gradients_before()) for each in followers() if each.follows(core)]
    _core.backward(roots, seeds, None, keep, create_graph, True)
    for each, before in waiting:
        each.gradients_after(before)


def _check_sessions(roots: list[Any], wanted: list[Any]) -> None:
    core = roots[0]._session if roots else None
    if core is None:
        return
    for each in wanted:
        if each.is_meta != roots[0].is_meta:
            raise RuntimeError(f"grad: an output is on the device {roots[0].device} and an input on "
                               f"{each.device}; no gradient leaves the device meta")
    if any(each._session is not core for each in wanted) or may_return(core):
        raise RuntimeError(
            "a path from the inputs to the outputs may lead through another session: gradients of tensors "
            "that were moved between ranks of a mesh are computed by backward() without inputs, in .grad")


def grad(outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: bool | None = None,
         create_graph: bool = False, only_inputs: bool = True, allow_unused: bool | None = None,
         is_grads_batched: bool = False,
         materialize_grads: bool = False) -> tuple[Tensor | None, ...]:
    """The gradients of the outputs with respect to the inputs, as new tensors; .grad is not changed.

    Returns one gradient for each input, in the input's shape; with allow_unused, None for an input that was
    not used. With is_grads_batched, dimension 0 of grad_outputs, and of the results, is a batch of vectors.
    """
    if materialize_grads and allow_unused is False:
        raise ValueError("Expected allow_unused to be True or not passed when materialize_grads=True, "
                         "but got: allow_unused=False.")
    roots, given = _list(outputs), _list(inputs)
    if not given:
        raise RuntimeError("`inputs` argument to `grad()` cannot be empty.")
    # A sparse or masked tensor has the history of its values.
    wanted = [each._data if hasattr(each, "_gradient") else each for each in given]
    _check_sessions(roots, wanted)
    if is_grads_batched:
        from ..func import vmap

        def vjp(*seeds: Tensor) -> Any:
            return grad(roots, wanted, list(seeds), retain_graph, create_graph, True, allow_unused,
                        False, materialize_grads)

        return tuple(vmap(vjp)(*_list(grad_outputs)))
    seeds = _list(grad_outputs) if grad_outputs is not None else [None] * len(roots)
    if len(seeds) != len(roots):
        raise RuntimeError(f"grad: each output needs one gradient, got {len(roots)} outputs and "
                           f"{len(seeds)} gradients")
    keep = create_graph if retain_graph is None else retain_graph
    unused = materialize_grads if allow_unused is None else allow_unused
    found: Sequence[Any] = _core.backward(roots, seeds, wanted, keep, create_graph, unused)
    if materialize_grads:
        from .._functions import zeros_like

        found = [zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]
    return tuple(each._gradient(g) if each is not w and g is not None else g
                 for each, w, g in zip(given, wanted, found, strict=True))


def backward_stream(tensor: Tensor, params: Any, gradient: Tensor | None = None,
                    retain_graph: bool = False) -> Iterator[tuple[str, Any]]:
    """Runs the backward of `tensor` and yields (name, .grad) of each parameter as soon as it is final,
    while the rest of the backward is still running. Its values have already arrived: .numpy() of a yielded
    gradient does not wait. Sparse gradients are yielded last, and their values have not arrived.

    `params` is a module, a dict, pairs of names and tensors, or tensors (named by their position).
    Gradients of other leaves are accumulated too, as by backward().
    """
    from .._sessions.session import owner_of
    from ..sparse import SparseTensor

    if tensor.is_meta:
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    if hasattr(params, "named_parameters"):
        named = list(params.named_parameters())
    elif isinstance(params, dict):
        named = list(params.items())
    else:
        named = [each if isinstance(each, tuple) else (str(i), each) for i, each in enumerate(params)]
    names: dict[Any, str] = {}
    for name, p in named:
        names.setdefault(p, name)
    session = owner_of(tensor._session)
    core = session._core
    before = {p: p.grad._version for p in names if isinstance(p.grad, SparseTensor)}
    leaves = _core.streamed(core, session._inline,
                            lambda: backward(tensor, gradient, retain_graph=retain_graph))

    def arrive() -> Iterator[tuple[str, Any]]:
        for leaf, fetch in leaves:
            g = leaf.grad
            if fetch.bulk:
                buffer = bytearray(g.nbytes)
                with fetch, watched("download", len(buffer)) as moved:
                    session._transport.download(fetch.seq, memoryview(buffer), moved)
                data = bytes(buffer)
            else:
                data = fetch.read()
            name = names.get(leaf)
            if name is not None:
                g._keep(data)
                yield name, g
        for leaf, name in names.items():
            g = leaf.grad
            if isinstance(g, SparseTensor) and g._version != before.get(leaf):
                yield name, g

    return arrive()
