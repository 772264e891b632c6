"""Tensors that a session keeps under names, so that they outlive the client that made them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import _core
from .._connection.protowire import Message, integers, signed

if TYPE_CHECKING:
    from .._tensors.tensor import Tensor
    from .session import Session

__all__ = ["flat", "good_name", "keep", "kept", "restored"]


def flat(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, tensor) for a tensor, and name/key for the tensors in a dict, a list, a tuple or a
    Module."""
    if hasattr(value, "state_dict"):
        value = dict(value.state_dict(keep_vars=True)) if _is_module(value) else value.state_dict()
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from flat(f"{name}/{key}", each)
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from flat(f"{name}/{i}", each)
    elif isinstance(value, _core.Tensor):
        yield name, value


def _is_module(value: Any) -> bool:
    from ..nn import Module

    return isinstance(value, Module)


def keep(name: str, value: Any) -> None:
    """Makes the session keep `value` under `name`, for a later client of the session.

    `value` is a tensor, or a dict, list, tuple, Module or optimizer, whose tensors are kept as "name/key".
    None removes the name and all names below it. See `Session.kept` and `docs/sessions.md`.
    """
    from .session import current_session

    current_session().keep(name, value)


def kept() -> dict[str, Tensor]:
    """The named tensors of the current session."""
    from .session import current_session

    return current_session().kept()


def restored(core: _core.Session, start: Message) -> dict[str, Tensor]:
    """Restores the client's copy of the graph of a session that was taken over, from the HelloReply;
    returns the session's named tensors."""
    inventory = start.message(24)
    tensors = [
        (t.integer(1), t.integer(2), t.integer(3), t.integer(4), t.text(5), integers(t, 6),
         integers(t, 7), signed(t.integer(8)), t.integer(9), t.integer(10), t.integer(11),
         t.integer(12), bool(t.integer(13)), bool(t.integer(14)))
        for t in inventory.messages(1)]
    names = [(n.text(1), n.integer(2)) for n in inventory.messages(2)]
    found: dict[str, Tensor] = core.resume(
        start.integer(21), start.integer(22), start.integer(23), tensors, names)
    return found


def good_name(name: object) -> bool:
    """Returns whether the name is valid for keeping or publishing."""
    return isinstance(name, str) and 0 < len(name) <= 200 and name.isascii() and name.isprintable()


def replace(session: Session, held: dict[str, Tensor], name: str, value: Any) -> None:
    """Implements keep() for one session: issues the names, and holds the tensors so that their handles stay
    valid."""
    fresh = dict(flat(name, value)) if good_name(name) else {}
    for each in fresh or [name]:
        if not good_name(each):
            raise ValueError(
                f"keep: {each!r:.200} is not a valid name: 1 to 200 characters of printable ASCII")
    if value is not None and not fresh:
        raise TypeError("keep: expected a tensor, or a container or module of tensors")
    for old in [n for n in held if n == name or n.startswith(name + "/")]:
        if old not in fresh:
            session._core.keep(old, None)
            del held[old]
    for each, tensor in fresh.items():
        session._core.keep(each, tensor)
        held[each] = tensor
