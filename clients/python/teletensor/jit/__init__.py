"""Captured functions: compile, trace, script, save and load. All of them are based on the same kind of
program."""

from .._script import ScriptError
from ._compiled import Compiled, Program, compile, trace
from ._files import Loaded, load, save
from ._marks import *  # noqa: F403
from ._marks import __all__ as _marks
from ._scripted import Scripted, script

__all__ = ["Compiled", "Loaded", "Program", "ScriptError", "Scripted", "compile", "load", "save",
           "script", "trace"]
__all__ += _marks
