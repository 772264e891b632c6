"""Private attributes of PyTorch's Module that libraries read and override, for Module to inherit."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, MutableSet
from typing import Any

__all__ = ["PrivateNames"]


def _hooks(owner: str, kind: str) -> property:
    """The dict of the hooks of one kind: a program may look at it, clear it and write to it."""

    def get(self: Any) -> Any:
        return getattr(getattr(self, owner)(), kind)

    def put(self: Any, hooks: Any) -> None:
        setattr(getattr(self, owner)(), kind, hooks)

    return property(get, put)


class _NonPersistent(MutableSet[str]):
    """The names of a module's buffers that are left out of state_dict(), as a set. It is created at each
    use, as the mappings of the module are."""

    def __init__(self, buffers: dict[str, bool]) -> None:
        self._buffers = buffers

    def __contains__(self, name: object) -> bool:
        return self._buffers.get(name) is False  # type: ignore[call-overload]

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, kept in self._buffers.items() if not kept])

    def __len__(self) -> int:
        return sum(not kept for kept in self._buffers.values())

    def add(self, value: str) -> None:
        if value in self._buffers:
            self._buffers[value] = False

    def discard(self, value: str) -> None:
        if value in self._buffers:
            self._buffers[value] = True

    def __repr__(self) -> str:
        return repr(set(self))


class PrivateNames:
    """Module's private attributes of PyTorch beyond those that it needs itself."""

    _buffer_names: dict[str, bool]

    _forward_pre_hooks = _hooks("_own_hooks", "before")
    _forward_pre_hooks_with_kwargs = _hooks("_own_hooks", "with_kwargs")
    _forward_hooks = _hooks("_own_hooks", "after")
    _forward_hooks_with_kwargs = _hooks("_own_hooks", "with_kwargs")
    _forward_hooks_always_called = _hooks("_own_hooks", "always")
    _backward_hooks = _hooks("_own_hooks", "backward_after")
    _backward_pre_hooks = _hooks("_own_hooks", "backward_before")
    _state_dict_hooks = _hooks("_own_state_hooks", "save_after")
    _state_dict_pre_hooks = _hooks("_own_state_hooks", "save_before")
    _load_state_dict_pre_hooks = _hooks("_own_state_hooks", "load_before")
    _load_state_dict_post_hooks = _hooks("_own_state_hooks", "load_after")

    def __setstate__(self, state: MutableMapping[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def _non_persistent_buffers_set(self) -> MutableSet[str]:
        return _NonPersistent(self._buffer_names)
