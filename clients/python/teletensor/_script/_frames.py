"""Helper classes of the script compiler's interpreter: frames, exceptions, the session of the stand-in
tensors."""

from __future__ import annotations

import ast
from typing import Any

from .. import _core
from .._sessions.session import Session, _sessions
from ._source import ScriptError, Source

__all__ = ["MARK", "Frame", "Leave", "NoGradient", "StandIn", "compiling", "refuse_marked"]

MARK = "_teletensor_script"  # the attribute of functions that are not compiled: "ignore" or "unused"


class Leave(Exception):
    """`break` or `continue` in a loop that is unrolled."""

    def __init__(self, frame: Frame, node: ast.stmt) -> None:
        self.frame, self.node = frame, node


class NoGradient(Exception):
    """The gradients of this function cannot be compiled to a program."""


class StandIn(Session):
    """A session without a daemon, to which the stand-in tensors belong."""

    def __init__(self, core: Any, devices: list[str]) -> None:
        _core.Scope.__init__(self)
        self._core = core
        self.devices = devices
        self._inline = 1 << 30
        self._closed = True
        self._pid = -1
        self.name = "script"


class Frame:
    """The variables of one function while its syntax tree is interpreted."""

    def __init__(self, source: Source, variables: dict[str, Any]) -> None:
        self.source = source
        self.variables = variables


def compiling() -> bool:
    """Returns whether this thread is running a function in order to compile it."""
    stack = _sessions()
    return bool(stack) and isinstance(stack[-1], StandIn)


def refuse_marked(function: Any, line: str) -> None:
    """ScriptError for a function that is marked as not to be compiled."""
    mark = getattr(function, MARK, None)
    if mark is not None:
        raise ScriptError(f"{line}: script: {function.__name__}() is marked jit.{mark}: a program does not "
                          "go back to Python; leave the call to `if not jit.is_scripting()`")
