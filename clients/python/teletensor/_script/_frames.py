"""What the script compiler's walk needs beside the tree: frames, exceptions, the stand-ins' session."""

from __future__ import annotations

import ast
from typing import Any

from .. import _core
from .._session import Session, _sessions
from ._source import ScriptError, Source

__all__ = ["MARK", "Frame", "Leave", "NoGradient", "StandIn", "compiling", "refuse_marked"]

MARK = "_teletensor_script"  # attribute of functions that are not compiled: "ignore" or "unused"


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


def compiling() -> bool:
    """Does this thread run a function for its program?"""
    stack = _sessions()
    return bool(stack) and isinstance(stack[-1], StandIn)


def refuse_marked(function: Any, line: str) -> None:
    """ScriptError for a function that is not to be compiled."""
    mark = getattr(function, MARK, None)
    if mark is not None:
        raise ScriptError(f"{line}: script: {function.__name__}() is marked jit.{mark}: a program does not "
                          "go back to Python; leave the call to `if not jit.is_scripting()`")
