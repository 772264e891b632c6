"""Tensors that several sessions use: publish() and published()."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ._kept import flat, good_name
from ._protowire import Message, decode, encode, integers

if TYPE_CHECKING:
    from ._session import Session
    from ._tensor import Tensor

__all__ = ["publication_of", "publish", "published"]


def publish(name: str, value: Any, writable: bool = False, users: Iterable[str] = ()) -> None:
    """Lets other sessions use `value` under `name`, until nobody holds it any more.

    Args:
        name: 1 to 200 characters of printable ASCII. Other users write "user/name".
        value: a tensor, or a dict, list, tuple or Module, whose tensors become "name/key". None
            takes the name back, and those below it; whoever has the tensors keeps them.
        writable: others may write it in place. Everybody sees every write, the publisher's too.
        users: who may use it besides this user's own sessions; "*" for everybody.

    See `published` and `docs/sharing.md`.
    """
    from ._session import current_session

    current_session().publish(name, value, writable, users)


def published(name: str) -> Tensor | dict[str, Tensor]:
    """The tensor that a session has published as `name`, or another user as "user/name".

    It is a leaf of the current session on the publisher's own memory: what either writes in place, the
    other sees. Where only names below it exist ("name/weight"), a dict of those. KeyError where there is
    nothing, or nothing for this user.
    """
    from ._session import current_session

    return current_session().published(name)


def publication_of(message: Message) -> dict[str, Any]:
    """The fields of a Publication."""
    return {"id": message.integer(1), "name": message.text(2), "user": message.text(3),
            "users": message.text(4).split(), "dtype": message.integer(5), "device": message.text(6),
            "shape": integers(message, 7), "writable": bool(message.integer(8)),
            "bytes": message.integer(9)}


def _checked(name: str) -> str:
    if not good_name(name):
        raise ValueError(f"publish: {name!r:.200} is no name: 1 to 200 characters of printable ASCII")
    return name


def publish_in(session: Session, name: str, value: Any, writable: bool, users: Iterable[str]) -> None:
    """publish() for one session; waits, so that what goes wrong is raised here."""
    _checked(name)
    whom = [users] if isinstance(users, str) else list(users)
    for each in whom:
        if each != "*" and (not each.isascii() or not each.isprintable() or " " in each or not each):
            raise ValueError(f"publish: {each!r} is no user")
    text = "*" if "*" in whom else " ".join(whom)
    if len(text) > 200:
        raise ValueError("publish: more users than 200 characters of names; publish to everybody (*)")
    if value is None:
        own = [n for n in session._published if n == name or n.startswith(name + "/")]
        if not own:
            raise KeyError(f"this session has not published {name!r}")
        for each in own:
            session._core.publish(each, None, False, "")
            session._published.discard(each)
    else:
        fresh = dict(flat(name, value))
        if not fresh:
            raise TypeError("publish: a tensor is wanted, or what holds tensors")
        for each, tensor in fresh.items():
            session._core.publish(_checked(each), tensor, writable, text)
        session._published.update(fresh)
    session._core.synchronize()


def published_in(session: Session, name: str) -> Tensor | dict[str, Tensor]:
    """published() for one session."""
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
