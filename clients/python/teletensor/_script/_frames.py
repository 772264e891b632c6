"""What the script compiler's walk needs beside the tree: frames, exceptions, the stand-ins' session."""

from __future__ import annotations

import ast
from typing import Any

from .. import _core
from .._session import Session
from ._source import Source

__all__ = ["Frame", "Leave", "NoGradient", "StandIn"]


class Leave(Exception):
    """`break` or `continue` in a loop that is written out."""

    def __init__(self, frame: Frame, node: ast.stmt) -> None:
        self.frame, self.node = frame, node


class NoGradient(Exception):
    """The gradients of this function cannot be a program."""


class StandIn(Session):
    """A session without a daemon, which the stand-ins live in."""

    def __init__(self, core: Any, devices: list[str]) -> None:
        _core.Scope.__init__(self)
        self._core = core
        self.devices = devices
        self._inline = 1 << 30
        self._closed = True
        self._pid = -1
        self.name = "script"


class Frame:
    """One function's variables while its tree is walked."""

    def __init__(self, source: Source, variables: dict[str, Any]) -> None:
        self.source = source
        self.variables = variables
