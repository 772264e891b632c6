"""The script compiler: compiles the syntax tree of a function in a subset of Python to a program with
branches and loops."""

from ._compiler import Compiler, NoGradient, ScriptError
from ._frames import MARK, compiling
from ._source import Source

__all__ = ["MARK", "Compiler", "NoGradient", "ScriptError", "Source", "compiling"]
