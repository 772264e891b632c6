"""Rank: a session of a mesh, and a device of its daemon."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from ... import _core
from ..._sessions.session import Session, _sessions
from ..._tensors.tensor import Place
from ._transfer import moved

if TYPE_CHECKING:
    from ._mesh import Mesh

__all__ = ["Rank"]


class Rank(Place):
    """A rank of a mesh, `mesh[i]`. `x.to(mesh[i])` is the tensor in the session of this rank."""

    def __init__(self, mesh: Mesh, index: int, session: Session, device: _core.device) -> None:
        self.mesh, self.index, self.session, self.device = mesh, index, session, device

    def __repr__(self) -> str:
        return f"<rank {self.index} of {self.mesh._title()}: {self.device} at {self.session.address}>"

    def as_current(self) -> contextlib.AbstractContextManager[Any]:
        """A context whose lines are those of this rank: tensors are created in its session and on its
        device, and collectives are called by this rank."""
        if self.device.type == "cpu":
            return self.session.as_current()
        return _on(self)

    def copy(self, value: Any) -> Any:
        """A copy of a tensor, module, optimizer, or of a tuple, list or dict of these, with its tensors on
        this rank. Tensors of other ranks are sent from daemon to daemon, and all further tensors through
        this program."""
        from ._copies import copied

        return copied(value, self)

    def _take(self, x: _core.Tensor) -> _core.Tensor:
        return moved(x, self)


@contextlib.contextmanager
def _on(rank: Rank) -> Any:
    with rank.session.as_current(), rank.device:
        yield rank


def current_rank(mesh: Mesh) -> Rank | None:
    """The rank whose lines this thread is running: that of the innermost session of a `with`."""
    stack = _sessions()
    if not stack:
        return None
    return next((rank for rank in mesh if rank.session is stack[-1]), None)


def named(error: BaseException, rank: Rank) -> None:
    """Adds the rank to the error's message, if the message does not name one."""
    text = error.args[0] if error.args and isinstance(error.args[0], str) else ""
    if (
        text and not re.search(r"\brank \d", text) and not isinstance(error, KeyError)
    ):  # errors whose text is a key
        error.args = (f"rank {rank.index}: {text}", *error.args[1:])
