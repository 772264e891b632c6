"""The nodes of the tape, and hooks on several tensors at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .. import _core
from .._core import Node, Tensor
from .._sessions.scopes import Restoring
from .._sessions.session import current_session, open_session
from .._tensors.convert import default_device
from ._modes import enable_grad

__all__ = ["GradientEdge", "Node", "NodeHook", "allow_mutation_on_saved_tensors",
           "disable_saved_tensors_hooks", "get_gradient_edge", "register_multi_grad_hook", "save_on_cpu",
           "saved_tensors_hooks"]


class NodeHook:
    """The result of a node's register_hook; remove() removes the hook."""

    def __init__(self, node: Node, hook: int) -> None:
        self._node, self._hook = node, hook

    def remove(self) -> None:
        """Removes the hook."""
        self._node._remove_hook(self._hook)


class GradientEdge(NamedTuple):
    """The place at which the gradient of a tensor arrives: a node and the index of its output. It can be
    used in place of the tensor in `grad` and `backward`; get_gradient_edge stores the tensor with it."""

    node: Node
    output_nr: int
    ownership_token: Tensor | None = None


def _tensor_at(edge: GradientEdge) -> Tensor:
    """The tensor for which an edge stands. RuntimeError if it has another history by now."""
    node, output, held = edge
    found = held if held is not None else _leaf(node)
    if found is None:
        raise RuntimeError("a GradientEdge whose node is no leaf must come from get_gradient_edge()")
    if held is not None and (_node_of(held), held.output_nr) != (node, output):
        raise RuntimeError("the tensor of this GradientEdge has since been written in place")
    return found


def _leaf(self: Node) -> Tensor | None:
    leaf: Tensor | None = self.variable
    return leaf


def _register_hook(self: Node, fn: Callable[[Any, Any], Any]) -> Any:
    """Calls fn(grad_inputs, grad_outputs) after the node's backward has run; a tuple that it returns
    replaces grad_inputs."""
    leaf = _leaf(self)
    if leaf is not None:
        return leaf.register_post_accumulate_grad_hook(lambda t: fn((), (t.grad,)))
    return NodeHook(self, self._add_hook(fn))


def _register_prehook(self: Node, fn: Callable[[Any], Any]) -> Any:
    """Calls fn(grad_outputs) before the node's backward runs; a tuple that it returns replaces
    grad_outputs."""
    leaf = _leaf(self)
    if leaf is not None:
        def hook(g: Tensor) -> Any:
            changed = fn((g,))
            return changed[0] if isinstance(changed, tuple) else changed

        return leaf.register_hook(hook)
    return NodeHook(self, self._add_pre_hook(fn))


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """Returns the edge at which the gradient of `tensor` arrives."""
    if not tensor.requires_grad:
        raise RuntimeError("It is not possible to get the gradient edge for a Tensor that does not "
                           "require gradients")
    return GradientEdge(_node_of(tensor), tensor.output_nr, tensor)


def _node_of(tensor: Tensor) -> Node:
    """The node that created the tensor, or the node that accumulates the gradient of a leaf."""
    node: Node | None = tensor.grad_fn
    if node is not None:
        return node
    with enable_grad():
        leaf: Node = tensor.view_as(tensor).grad_fn.next_functions[0][0]
    return leaf


class _Handles:
    def __init__(self, handles: Sequence[Any]) -> None:
        self._handles = handles

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def register_multi_grad_hook(tensors: Sequence[Tensor], fn: Callable[..., None], *,
                             mode: str = "all") -> Any:
    """Calls fn(gradients) when the gradients of all tensors are known (mode "all"), or fn(gradient) for the
    first one ("any"). Returns a handle whose remove() removes the hook."""
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    found: list[Tensor | None] = [None] * len(tensors)
    seen = [0]

    def hook_of(number: int) -> Callable[[Tensor], None]:
        def hook(g: Tensor) -> None:
            seen[0] += 1
            if mode == "any":
                if seen[0] == 1:
                    fn(g)
                return
            found[number] = g
            if seen[0] == len(tensors):
                grads = list(found)
                found[:] = [None] * len(tensors)
                seen[0] = 0
                fn(grads)

        return hook

    return _Handles([t.register_hook(hook_of(i)) for i, t in enumerate(tensors)])


_disabled: list[str] = []


class saved_tensors_hooks(_core.Scope):
    """A context in which ops pass the tensors that they save for backward to pack_hook(tensor), and keep
    its result instead; backward uses unpack_hook(result). Both hooks run without recording.

    The daemon then saves nothing for those ops, and a backward through them is issued op by op by the
    client. Applies to the current session and to the device meta.
    """

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self._hooks = pack_hook, unpack_hook
        self._native: list[_core.Session] = []  # the sessions in which the hooks apply

    def _save(self) -> list[int]:
        if _disabled:
            raise RuntimeError(_disabled[-1])
        self._native = self._sessions()
        return [_core.saved_hooks(each) for each in self._native]

    def _sessions(self) -> list[_core.Session]:
        from .._sessions.meta import session as meta

        no_daemon = open_session() is None and default_device().type == "meta"
        return [meta._core] if no_daemon else [current_session()._core, meta._core]

    def _apply(self) -> None:
        for each in self._native:
            _core.push_saved_hooks(each, *self._hooks, [])

    def _restore(self, state: list[int], kind: Any) -> None:
        for each, count in zip(self._native, state, strict=True):
            _core.pop_saved_hooks(each, count)


class save_on_cpu(saved_tensors_hooks):
    """A context in which the tensors that ops save for backward are kept on the daemon's CPU until the
    backward uses them."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__(lambda x: (x.device, x.to("cpu", copy=True)), lambda kept: kept[1].to(kept[0]))


def disable_saved_tensors_hooks(error_message: str) -> Restoring:
    """A context in which entering saved_tensors_hooks raises RuntimeError(error_message)."""
    def restore(count: int) -> None:
        del _disabled[count:]

    return Restoring(lambda: len(_disabled), lambda: _disabled.append(error_message), restore)


@contextlib.contextmanager
def allow_mutation_on_saved_tensors() -> Iterator[None]:
    """Accepted without effect: a backward always uses the saved values, even if the tensor was overwritten
    later."""
    yield


def _attach() -> None:
    for name, method in (("register_hook", _register_hook), ("register_prehook", _register_prehook)):
        setattr(Node, name, method)


_attach()
