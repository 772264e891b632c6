"""The hooks of modules: functions that are called before and after forward, and around backward."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .._core import Tensor
from ..autograd.function import Function

if TYPE_CHECKING:
    from .module import Module

__all__ = [
    "Hooks", "RemovableHandle", "register_module_backward_hook", "register_module_forward_hook",
    "register_module_forward_pre_hook", "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
]

_next_id = itertools.count()


class RemovableHandle:
    """Removes a hook, by `remove()` or at the end of a `with` block."""

    def __init__(self, *hooks: dict[int, Any]) -> None:
        self.id = next(_next_id)
        self._hooks = hooks  # the dict of the hook, and those of facts about it

    def remove(self) -> None:
        """Removes the hook; a second call does nothing."""
        for hooks in self._hooks:
            hooks.pop(self.id, None)
        self._hooks = ()

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class _Same(Function):
    """The identity function, as a node of the graph through which the gradients of a module's inputs or
    outputs pass."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return tensors

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads


def _renamed(values: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int], Any]:
    """Returns the values with their tensors passed through _Same, the positions of the tensors, and the
    node (None if no tensor requires grad)."""
    places = [i for i, v in enumerate(values) if isinstance(v, Tensor)]
    if not any(values[i].requires_grad for i in places):
        return values, places, None
    named = list(values)
    node = None
    for i, tensor in zip(places, _Same.apply(*(values[i] for i in places)), strict=True):
        named[i] = tensor
        if tensor.grad_fn is not None:
            node = tensor.grad_fn
    return tuple(named), places, node


class _Passage:
    """One call of a module with backward hooks: collects the gradients of its outputs and inputs for the
    hooks."""

    def __init__(self, hooks: Hooks, module: Module) -> None:
        self.hooks, self.module = hooks, module
        self.of_outputs: tuple[Any, ...] | None = None
        self.has_inputs = False

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        args, places, node = _renamed(args)
        if node is None:
            return args
        self.has_inputs = True
        count = len(args)

        def hook(given: tuple[Any, ...], _: tuple[Any, ...]) -> Any:
            of_inputs: list[Any] = [None] * count
            for i, g in zip(places, given, strict=True):
                of_inputs[i] = g
            changed = self.call(tuple(of_inputs))
            return None if changed is None else tuple(changed[i] for i in places)

        node.register_hook(hook)
        return args

    def outputs(self, result: Any) -> Any:
        single = not isinstance(result, tuple)
        named, places, node = _renamed((result,) if single else result)
        if node is None:
            return result
        count = len(named)

        def hook(given: tuple[Any, ...]) -> Any:
            of_outputs: list[Any] = [None] * count
            for i, g in zip(places, given, strict=True):
                of_outputs[i] = g
            found: tuple[Any, ...] = tuple(of_outputs)
            for pre_hook in (*every.backward_before.values(), *self.hooks.backward_before.values()):
                changed = pre_hook(self.module, found)
                if changed is not None:
                    found = changed if isinstance(changed, tuple) else (changed,)
                    if len(found) != count:
                        raise RuntimeError(
                            "Backward pre hook returned an invalid number of grad_output, got "
                            f"{len(found)}, but expected {count}")
            self.of_outputs = found
            if not self.has_inputs:
                self.call((None,))
            return tuple(found[i] for i in places)

        node.register_prehook(hook)
        return named[0] if single else named

    def call(self, of_inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self.of_outputs is None:
            return None
        found, changed_any = of_inputs, False
        for hook in (*every.backward_after.values(), *self.hooks.backward_after.values()):
            changed = hook(self.module, found, self.of_outputs)
            if changed is None:
                continue
            if not self.has_inputs:
                raise RuntimeError("Backward hook for Modules where no input requires gradient should "
                                   "always return None or None for all gradients.")
            changed = changed if isinstance(changed, tuple) else (changed,)
            if len(changed) != len(of_inputs):
                raise RuntimeError(f"Backward hook returned an invalid number of grad_input, got "
                                   f"{len(changed)}, but expected {len(of_inputs)}")
            found, changed_any = changed, True
        return found if changed_any else None


class Hooks:
    """The hooks of one module, or of all modules. Created when the first hook is registered."""

    def __init__(self) -> None:
        self.backward_before: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self.backward_after: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self.before: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self.after: OrderedDict[int, Callable[..., Any]] = OrderedDict()
        self.with_kwargs: OrderedDict[int, bool] = OrderedDict()  # the hooks that receive kwargs
        self.always: OrderedDict[int, bool] = OrderedDict()  # the hooks that are called after an error, too
        self.compiled: Any = None  # the compiled module, after Module.compile()

    def __bool__(self) -> bool:
        return bool(self.before or self.after or self.backward_before or self.backward_after
                    or self.compiled)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "compiled": None}

    def add(
        self,
        hooks: OrderedDict[int, Callable[..., Any]],
        hook: Callable[..., Any],
        *,
        prepend: bool = False,
        with_kwargs: bool = False,
        always_call: bool = False,
    ) -> RemovableHandle:
        handle = RemovableHandle(hooks, self.with_kwargs, self.always)
        hooks[handle.id] = hook
        if with_kwargs:
            self.with_kwargs[handle.id] = True
        if always_call:
            self.always[handle.id] = True
        if prepend:
            hooks.move_to_end(handle.id, last=False)
        return handle

    def call(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls forward with the hooks around it: those for all modules, then the module's own."""
        if self.compiled is not None:
            compiled, self.compiled = self.compiled, None  # the compiled module calls the module itself
            try:
                return compiled(*args, **kwargs)
            finally:
                self.compiled = compiled
        called: set[int] = set()
        try:
            args, kwargs = self._call_before(module, args, kwargs)
            passage = None
            if any(each.backward_before or each.backward_after for each in (every, self)):
                passage = _Passage(self, module)
                args = passage.inputs(args)
            result = module.forward(*args, **kwargs)
            for key, hook, with_kwargs in self._each("after"):
                called.add(key)
                changed = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
                if changed is not None:
                    result = changed
            return result if passage is None else passage.outputs(result)
        except BaseException:
            for key, hook, with_kwargs in self._each("after"):
                if key not in called and (key in self.always or key in every.always):
                    hook(module, args, kwargs, None) if with_kwargs else hook(module, args, None)
            raise

    def _each(self, kind: str) -> Iterator[tuple[int, Callable[..., Any], bool]]:
        """Yields the key and the function of each hook of a kind, and whether it receives kwargs."""
        for hooks in (every, self):
            for key, hook in tuple(getattr(hooks, kind).items()):
                yield key, hook, key in hooks.with_kwargs

    def _call_before(
        self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for _, hook, with_kwargs in self._each("before"):
            changed = hook(module, args, kwargs) if with_kwargs else hook(module, args)
            if changed is None:
                continue
            if not with_kwargs:
                args = changed if isinstance(changed, tuple) else (changed,)
            elif isinstance(changed, tuple) and len(changed) == 2:
                args, kwargs = changed
            else:
                raise RuntimeError(
                    "a forward pre-hook with kwargs must return None or "
                    f"(args, kwargs), not {type(changed).__name__}"
                )
        return args, kwargs


class _HooksOfAll(Hooks):
    """The hooks for all modules. Each call of a module asks whether there are any: `ids` says so without a
    call of Python code."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: dict[int, bool] = {}

    def add(self, *args: Any, **kwargs: Any) -> RemovableHandle:
        handle = super().add(*args, **kwargs)
        self.ids[handle.id] = True
        handle._hooks += (self.ids,)
        return handle


every = _HooksOfAll()


def register_module_forward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls `hook(module, args)` before the forward of every module, before the module's own hooks; a
    result that is not None replaces the arguments."""
    return every.add(every.before, hook)


def register_module_forward_hook(
    hook: Callable[..., Any], *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Calls `hook(module, args, result)`, or with with_kwargs `hook(module, args, kwargs, result)`, after
    the forward of every module; a result that is not None replaces the module's result."""
    return every.add(every.after, hook, with_kwargs=with_kwargs, always_call=always_call)


def register_module_full_backward_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls `hook(module, grad_output)` before the backward of every module."""
    return every.add(every.backward_before, hook)


def register_module_full_backward_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls `hook(module, grad_input, grad_output)` for every module when these gradients are known."""
    return every.add(every.backward_after, hook)


register_module_backward_hook = register_module_full_backward_hook
