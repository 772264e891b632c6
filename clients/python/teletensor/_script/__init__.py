"""The script compiler: a Python subset, from its syntax tree, to a program with branches and loops."""

from ._compiler import Compiler, NoGradient, ScriptError
from ._frames import MARK, compiling

__all__ = ["MARK", "Compiler", "NoGradient", "ScriptError", "compiling"]
