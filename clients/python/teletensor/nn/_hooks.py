"""Forward hooks of a module: who is called before and after forward."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .module import Module

__all__ = ["RemovableHandle", "Hooks"]

_next_id = itertools.count()


class RemovableHandle:
    """Takes a hook away again: by `remove()` or at the end of a `with` block."""

    def __init__(self, hooks: OrderedDict[int, Any]) -> None:
        self.id = next(_next_id)
        self._hooks: OrderedDict[int, Any] | None = hooks

    def remove(self) -> None:
        """Ends the hook; a second call does nothing."""
        if self._hooks is not None:
            self._hooks.pop(self.id, None)
            self._hooks = None

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class Hooks:
    """The hooks of one module. Exists only once a first hook was registered."""

    def __init__(self) -> None:
        self.before: OrderedDict[int, tuple[Callable[..., Any], bool]] = OrderedDict()
        self.after: OrderedDict[int, tuple[Callable[..., Any], bool, bool]] = OrderedDict()

    @staticmethod
    def add(
        hooks: OrderedDict[int, Any], entry: tuple[Any, ...], prepend: bool
    ) -> RemovableHandle:
        handle = RemovableHandle(hooks)
        hooks[handle.id] = entry
        if prepend:
            hooks.move_to_end(handle.id, last=False)
        return handle

    def call(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """forward with the hooks around it."""
        called: set[int] = set()
        try:
            for pre_hook, with_kwargs in list(self.before.values()):
                if with_kwargs:
                    changed = pre_hook(module, args, kwargs)
                    if changed is not None:
                        if not (isinstance(changed, tuple) and len(changed) == 2):
                            raise RuntimeError(
                                "a forward pre-hook with kwargs must return None or "
                                f"(args, kwargs), not {type(changed).__name__}"
                            )
                        args, kwargs = changed
                else:
                    changed = pre_hook(module, args)
                    if changed is not None:
                        args = changed if isinstance(changed, tuple) else (changed,)
            result = module.forward(*args, **kwargs)
            for key, (hook, with_kwargs, _) in list(self.after.items()):
                called.add(key)
                if with_kwargs:
                    changed = hook(module, args, kwargs, result)
                else:
                    changed = hook(module, args, result)
                if changed is not None:
                    result = changed
            return result
        except BaseException:
            for key, (hook, with_kwargs, always) in list(self.after.items()):
                if always and key not in called:
                    hook(module, args, kwargs, None) if with_kwargs else hook(module, args, None)
            raise
