"""Function: an operation whose forward, backward, jvp and batching rule are written in Python."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .. import _core
from .._core import Tensor, ops
from .._functions.typeinfo import is_inexact
from ._modes import no_grad

__all__ = ["Function", "FunctionCtx", "InplaceFunction", "once_differentiable"]


class FunctionCtx:
    """The context of one call, in which forward stores what backward needs."""

    def __init__(self) -> None:
        self.needs_input_grad: tuple[bool, ...] = ()
        self.materialize_grads = True
        self._saved: tuple[Any, ...] = ()
        self._forward_saved: tuple[Any, ...] | None = None
        self._slots: list[int | None] = []
        self._node: Any = None
        self._dirty: tuple[Tensor, ...] = ()
        self._constant: tuple[Tensor, ...] = ()
        self._enter: Callable[[Tensor], Tensor] | None = None

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Saves tensors, with their present values, for backward. Only allowed in forward or
        setup_context."""
        for each in tensors:
            if each is not None and not isinstance(each, Tensor):
                raise TypeError("save_for_backward can only save variables, but argument is of type "
                                f"{type(each).__name__}")
        self._saved = tensors

    def save_for_forward(self, *tensors: Tensor | None) -> None:
        """Saves tensors for jvp."""
        self._forward_saved = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors that were saved by save_for_backward."""
        if self._node is None:
            return self._saved if self._forward_saved is None else self._forward_saved
        found = tuple(None if slot is None else self._node._saved(slot) for slot in self._slots)
        return found if self._enter is None else tuple(
            None if t is None else self._enter(t) for t in found)

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Declares that forward has written to these inputs in place; they must be returned."""
        self._dirty = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Declares that no gradient flows through these outputs."""
        self._constant = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """With False, gradients that do not exist are passed to backward as None instead of as zeros."""
        self.materialize_grads = value


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a backward that cannot be differentiated: operations in it are not recorded, and a second
    backward through its results raises RuntimeError."""

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        recorded = _core.grad_mode() and any(
            isinstance(g, Tensor) and g.requires_grad for g in grads)
        with no_grad():
            results = backward(ctx, *grads)
        if not recorded:
            return results
        single = not isinstance(results, tuple)
        given = (results,) if single else results

        class _Refuses(Function):
            @staticmethod
            def forward(ctx: Any, *values: Any) -> Any:
                return values

            @staticmethod
            def backward(ctx: Any, *_: Any) -> Any:
                raise RuntimeError("trying to differentiate twice a function that was marked with "
                                   "@once_differentiable")

        tensors = [t.detach().requires_grad_() for t in given if isinstance(t, Tensor)]
        refusing = iter(_Refuses.apply(*tensors) if tensors else ())
        out = tuple(next(refusing) if isinstance(t, Tensor) else t for t in given)
        return out[0] if single else out

    return wrapper


class _VmapInfo(NamedTuple):
    batch_size: int
    randomness: str


class Function:
    """Base class of custom differentiable operations.

    Subclasses define the static methods forward(ctx, *args) and backward(ctx, *grads), or forward(*args)
    with setup_context(ctx, inputs, output). For forward mode they define jvp(ctx, *tangents), and for vmap
    either vmap(info, in_dims, *args) or `generate_vmap_rule = True`. Call the operation as
    `Name.apply(*args)`. The daemon keeps the tensors that forward saved; the Python code runs in the
    client.
    """

    generate_vmap_rule = False

    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError(f"{type(self).__name__} should not be instantiated. Methods on autograd "
                           "functions are all static, so you should invoke them on the class itself. "
                           "Instantiating an autograd function is not allowed.")

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Computes the result; every subclass defines it."""
        raise NotImplementedError("You must implement the forward function for custom "
                                  "autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Saves what backward needs; if it is defined, forward has no parameter ctx."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Returns the gradients of the inputs, one for each argument of forward (None if there is none)."""
        raise NotImplementedError("You must implement either the backward or vjp method for your "
                                  "custom autograd.Function to use it with backward mode AD.")

    vjp = backward

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        """Returns the tangents of the outputs, computed from those of the inputs."""
        raise NotImplementedError("You must implement the jvp function for custom autograd.Function "
                                  "to use it with forward mode AD.")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        """Returns (outputs, their batch dims) for a whole batch."""
        raise NotImplementedError("To use autograd.Function with vmap, you must either override the "
                                  "vmap static method or set generate_vmap_rule=True.")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Calls the operation."""
        tensors = [a for a in args if isinstance(a, Tensor)]
        level = _core.innermost(tensors) if tensors and _core.depth() else None
        if level is not None and level[1]:
            return _with_tangents(cls, level[0], args)
        if level is not None and cls.vmap is not Function.vmap:
            return _by_own_rule(cls, level, args)
        if level is not None and not cls.generate_vmap_rule:
            raise RuntimeError(
                f"You tried to vmap over {cls.__name__}, but it does not have vmap support. Please "
                "override and implement the vmap staticmethod or set generate_vmap_rule=True.")
        return _call(cls, FunctionCtx(), args, level)


class InplaceFunction(Function):
    """The base class of functions of older programs that may write to their input (`ctx.mark_dirty`); it
    adds nothing."""


def _forward(cls: type[Function], ctx: FunctionCtx, args: tuple[Any, ...]) -> Any:
    if cls.setup_context is not Function.setup_context:
        output = cls.forward(*args)
        cls.setup_context(ctx, args, output)
        return output
    return cls.forward(ctx, *args)


def _among(tensor: Any, group: Iterable[Tensor]) -> bool:
    return any(tensor is each for each in group)


def _call(cls: type[Function], ctx: FunctionCtx, args: tuple[Any, ...], level: Any,
          forward: bool = False) -> Any:
    inputs = [a for a in args if isinstance(a, Tensor)]
    recorded = _core.grad_mode() and any(t.requires_grad for t in inputs)
    ctx.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
    with no_grad():
        outputs = _forward(cls, ctx, args)
    if not recorded:
        return outputs
    listed = outputs if isinstance(outputs, tuple) else (outputs,)
    for each in ctx._dirty:
        if not _among(each, listed):
            raise RuntimeError("Some elements marked as dirty during the forward method were not "
                               "returned as output. The inputs that are modified inplace must all be "
                               "outputs of the Function.")
        if each.is_leaf and each.requires_grad:
            raise RuntimeError("a leaf Variable that requires grad is being used in an in-place "
                               "operation.")
    values: list[Tensor] = []
    for each in listed:
        if isinstance(each, Tensor) and not _among(each, ctx._constant) and \
                is_inexact(each) and not _among(each, values):
            values.append(each)
    places = [next((i for i, v in enumerate(values) if v is each), None) for each in listed]
    blanks = [(each._shape, each.dtype, each.device) if isinstance(each, Tensor) else None
              for each in listed]
    saved = [t for t in ctx._saved if t is not None]

    # Only types are kept, not the arguments themselves, which would then live as long as the node.
    takes = tuple(isinstance(a, Tensor) for a in args)

    def run(node: Any, grads: list[Tensor | None]) -> list[Any]:
        full = []  # one for each output, including those without a gradient
        for place, blank in zip(places, blanks, strict=True):
            g = None if place is None else grads[place]
            if g is None and blank is not None and ctx.materialize_grads:
                g = ops["full"](0, *blank)
            full.append(g)
        return _backward(cls, ctx, takes, node, full, level)

    results, slots, _ = _core.function_node(inputs, values, saved, run, cls.__name__ + "Backward")
    numbers = iter(slots)
    ctx._slots = [None if t is None else next(numbers) for t in ctx._saved]
    if not forward:
        ctx._saved = ()
    named = []
    for each, at in zip(listed, places, strict=True):
        if at is None:
            named.append(each)
        elif _among(each, ctx._dirty):
            named.append(ops["copy_"](each, results[at]))
        else:
            named.append(results[at])
    ctx._dirty = ctx._constant = ()
    return tuple(named) if isinstance(outputs, tuple) else named[0]


def _backward(cls: type[Function], ctx: FunctionCtx, takes: tuple[bool, ...], node: Any,
              grads: list[Tensor | None], level: Any) -> list[Any]:
    ctx._node = node
    backward = cls.backward if cls.backward is not Function.backward else cls.vjp
    try:
        if level is None:
            given = backward(ctx, *grads)
        else:
            given = _batched_backward(backward, ctx, grads, level)
    finally:
        ctx._node = None
    if not isinstance(given, (tuple, list)):
        given = (given,)
    if len(given) > len(takes) and all(g is None for g in given[len(takes):]):
        given = given[:len(takes)]
    if len(given) != len(takes):
        raise RuntimeError(f"function {cls.__name__}Backward returned an incorrect number of "
                           f"gradients (expected {len(takes)}, got {len(given)})")
    for number, (g, tensor) in enumerate(zip(given, takes, strict=True)):
        if g is not None and not tensor:
            raise RuntimeError(f"function {cls.__name__}Backward returned a gradient different than "
                               f"None at position {number + 1}, but the corresponding forward input "
                               "was not a Variable")
    return [g for g, tensor in zip(given, takes, strict=True) if tensor]


class _Entering(_core.Scope):
    """A context in which the saved tensors are returned as samples of a vmap level."""

    def __init__(self, ctx: FunctionCtx, level: int) -> None:
        super().__init__()
        self._ctx, self._level = ctx, level

    def _save(self) -> None:
        pass

    def _apply(self) -> None:
        level = self._level
        self._ctx._enter = lambda t: _core.enter(t, 0, level)

    def _restore(self, state: Any, kind: Any) -> None:
        self._ctx._enter = None


def _batched_backward(backward: Callable[..., Any], ctx: FunctionCtx, grads: list[Any],
                      level: Any) -> Any:
    # The nodes below vmap are those of the batch: within a level of its size, backward sees one sample.
    _, _, size, randomness = level
    with _core.vmap_level(size, randomness) as number, _Entering(ctx, number):
        given = backward(ctx, *(None if g is None else _core.enter(g, 0, number) for g in grads))
        if not isinstance(given, (tuple, list)):
            given = (given,)
        return tuple(_core.leave(g, 0, number) if isinstance(g, Tensor) else g for g in given)


def _with_tangents(cls: type[Function], level: int, args: tuple[Any, ...]) -> Any:
    tangents = [_core.tangent_of(a, level) if isinstance(a, Tensor) else None for a in args]
    ctx = FunctionCtx()
    with _core.DepthScope(_core.below(level)):
        # Below this level the arguments are constants, but another level may still apply to them.
        inner = _core.innermost([a for a in args if isinstance(a, Tensor)]) \
            if _core.depth() else None
        if inner is not None:
            raise RuntimeError(f"{cls.__name__}: a Function inside several transforms at once is not "
                               "supported")
        outputs = _call(cls, ctx, args, None, forward=True)
        if ctx.materialize_grads:
            tangents = [ops["full"](0, a._shape, a.dtype, a.device)
                        if t is None and isinstance(a, Tensor) and is_inexact(a) else t
                        for t, a in zip(tangents, args, strict=True)]
        found = cls.jvp(ctx, *tangents)
        ctx._saved = ()
    listed = outputs if isinstance(outputs, tuple) else (outputs,)
    given = found if isinstance(found, tuple) else (found,)
    if len(listed) != len(given):
        raise RuntimeError(f"{cls.__name__}.jvp returned {len(given)} tangents for {len(listed)} "
                           "outputs")
    for output, tangent in zip(listed, given, strict=True):
        if tangent is not None:
            _core.set_tangent(output, tangent, level)
    return outputs


def _by_own_rule(cls: type[Function], level: Any, args: tuple[Any, ...]) -> Any:
    number, _, size, randomness = level
    in_dims = tuple(0 if isinstance(a, Tensor) and _core.is_batched(a, number) else None
                    for a in args)
    lowered = [_core.leave(a, 0, number) if d == 0 else a for a, d in zip(args, in_dims, strict=True)]
    with _core.DepthScope(_core.below(number)):
        info = _VmapInfo(size, ("error", "same", "different")[randomness])
        outputs, out_dims = cls.vmap(info, in_dims, *lowered)
    single = not isinstance(outputs, tuple)
    listed = (outputs,) if single else outputs
    dims = out_dims if isinstance(out_dims, tuple) else (out_dims,) * len(listed)
    named = tuple(_core.enter(t, d, number) if isinstance(t, Tensor) and d is not None else t
                  for t, d in zip(listed, dims, strict=True))
    return named[0] if single else named

