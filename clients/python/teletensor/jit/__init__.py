"""Captured functions: compile, trace, script, save and load. All of them are based on the same kind of
program."""

from .._script import ScriptError
from ._async import *  # noqa: F403
from ._async import __all__ as _async
from ._compiled import Compiled, Program, compile, trace, trace_module
from ._files import Loaded, load, save
from ._frozen import freeze, optimize_for_inference
from ._fusion import *  # noqa: F403
from ._fusion import __all__ as _fusion
from ._kinds import isinstance
from ._marks import *  # noqa: F403
from ._marks import __all__ as _marks
from ._scripted import Scripted, script

__all__ = ["Compiled", "Loaded", "Program", "ScriptError", "Scripted", "compile", "freeze", "isinstance",
           "load", "optimize_for_inference", "save", "script", "trace", "trace_module"]
__all__ += _async + _fusion + _marks
