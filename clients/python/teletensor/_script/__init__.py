"""The script compiler: a Python subset, from its syntax tree, to a program with branches and loops."""

from ._compiler import Compiler, NoGradient, ScriptError

__all__ = ["Compiler", "NoGradient", "ScriptError"]
