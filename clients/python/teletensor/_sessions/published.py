"""Tensors that several sessions share: publish() and published()."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from .._connection.protowire import Message, decode, encode, integers
from .._tensors.size import Size
from .kept import flat, good_name

if TYPE_CHECKING:
    from .._tensors.tensor import Tensor
    from .session import Session

__all__ = ["Held", "publication_of", "publish", "published"]


class Held(NamedTuple):
    """A tensor that a session has published, and who may use it in which way."""

    # a detached alias, so that neither the recorded graph nor an assignment to `.data` affects it
    tensor: Tensor
    writable: bool
    users: str


def publish(name: str, value: Any, writable: bool = False, users: Iterable[str] = ()) -> None:
    """Lets other sessions use `value` under `name`, until this session withdraws the name or ends.

    Until then the session holds the tensor, even if the program has no other reference to it.

    Args:
        name: 1 to 200 characters of printable ASCII. Other users write "user/name".
        value: a tensor, or a dict, list, tuple or Module, whose tensors become "name/key". None
            withdraws the name and all names below it; sessions that have the tensors keep them.
        writable: other sessions may write to it in place. Every session sees every write, including
            the publisher's.
        users: names of the users who may use it besides this user's own sessions; "*" for all users.

    If one tensor is refused, none is published: the error is raised, and names that this client has
    published earlier keep their tensors. Only Ctrl-C can leave a part of the tensors published.

    See `published` and `docs/sharing.md`.
    """
    from .session import current_session

    current_session().publish(name, value, writable, users)


@overload
def published(name: None = None) -> list[dict[str, Any]]: ...
@overload
def published(name: str) -> Tensor | dict[str, Tensor]: ...
def published(name: str | None = None) -> Tensor | dict[str, Tensor] | list[dict[str, Any]]:
    """Returns the tensor that a session has published as `name`, or that another user has published as
    "user/name". Without a name it returns a list of all publications that this user may use (for an admin,
    those of all users).

    Each entry of the list is a dict: `name`, the `user` who published it, the `users` who may use it
    besides that user ("*" for all users), `writable`, `dtype`, `shape`, `device` and `bytes`. No tensor is
    fetched.

    The tensor is a leaf of the current session that uses the publisher's memory: in-place writes of either
    session are seen by both. If there are only names below the name ("name/weight"), the result is a dict
    of these. KeyError if there is no such name, or if this user may not use it.
    """
    from .session import current_session

    return current_session().published(name)


def publication_of(message: Message) -> dict[str, Any]:
    """The fields of a Publication message as a dictionary."""
    return {"id": message.integer(1), "name": message.text(2), "user": message.text(3),
            "users": message.text(4).split(), "dtype": message.integer(5), "device": message.text(6),
            "shape": integers(message, 7), "writable": bool(message.integer(8)),
            "bytes": message.integer(9)}


def _checked(name: str) -> str:
    if not good_name(name):
        raise ValueError(
            f"publish: {name!r:.200} is not a valid name: 1 to 200 characters of printable ASCII")
    return name


def publish_in(session: Session, name: str, value: Any, writable: bool, users: Iterable[str]) -> None:
    """Implements publish() for one session; waits, so that errors are raised here."""
    _checked(name)
    whom = [users] if isinstance(users, str) else list(users)
    for each in whom:
        if each != "*" and (not each.isascii() or not each.isprintable() or " " in each or not each):
            raise ValueError(f"publish: {each!r} is not a valid user name")
    text = "*" if "*" in whom else " ".join(whom)
    if len(text) > 200:
        raise ValueError("publish: the users' names have more than 200 characters; publish to all (*)")
    if value is None:
        return _withdraw(session, name)
    fresh = dict(flat(name, value))
    if not fresh:
        raise TypeError("publish: expected a tensor, or a container or module of tensors")
    for each in fresh:
        _checked(each)
    session._core.synchronize()  # raises errors of earlier lines before anything is published
    before = {each: session._published.get(each) for each in fresh}
    try:
        for each, tensor in fresh.items():
            session._core.publish(each, tensor, writable, text)
            session._published.setdefault(each, None)
        session._core.synchronize()
        held = {each: Held(tensor.detach(), writable, text) for each, tensor in fresh.items()}
    except Exception:
        with contextlib.suppress(Exception):  # a session that is lost has nothing published
            _undo(session, before)
        raise
    session._published.update(held)


def _undo(session: Session, before: dict[str, Held | None]) -> None:
    """Restores the names after a publish() that has failed."""
    core = session._core
    for name, held in before.items():
        if held is None:
            core.publish(name, None, False, "")
            session._published.pop(name, None)
        else:
            core.publish(name, *held)
    core.wait_completed()
    # The program gets the error of publish(); withdrawing a name that was not published would cause
    # another.
    core.clear_pending()


def _withdraw(session: Session, name: str) -> None:
    own = [n for n in session._published if n == name or n.startswith(name + "/")]
    if not own:
        raise KeyError(f"this session has not published {name!r}")
    for each in own:
        session._core.publish(each, None, False, "")
    session._core.synchronize()
    # The daemon drops a name with the last holder of its tensor, so the tensors are held until the daemon
    # has executed the withdrawal.
    for each in own:
        del session._published[each]


def listed_in(session: Session) -> list[dict[str, Any]]:
    """Implements published() without a name for one session."""
    from .. import _api as tt
    from .._tensors.arrays import DTYPES

    dtypes = {dtype.number: dtype for dtype in (getattr(tt, name) for name in DTYPES)}
    rows = session._admin().publications()
    for row in rows:
        del row["id"]
        row["dtype"], row["shape"] = dtypes[row["dtype"]], Size(row["shape"])
    return rows


def published_in(session: Session, name: str) -> Tensor | dict[str, Tensor]:
    """Implements published() for one session."""
    transport, request = session._transport, encode([(1, _checked(name))])
    reply = transport.ask(lambda: decode(transport.unary("Compute", "Published", request)))
    found = [publication_of(m) for m in reply.messages(1)]
    if not found:
        raise KeyError(f"nothing that this session may use is published as {name!r}")
    tensors = {
        f["name"]: session._core.published(f["id"], f["dtype"], f["device"], f["shape"], f["writable"])
        for f in found}
    session._core.synchronize()
    for own, tensor in tensors.items():
        if own == name or name.endswith("/" + own):
            exact: Tensor = tensor
            return exact
    rest = name if next(iter(tensors)).startswith(name + "/") else name.partition("/")[2]
    return {own[len(rest) + 1:]: tensor for own, tensor in tensors.items()}
