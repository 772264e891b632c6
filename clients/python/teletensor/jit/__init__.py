"""Captured functions: compile, trace, save and load. One program underneath."""

from ._compiled import Compiled, Program, compile, trace

__all__ = ["Compiled", "Program", "compile", "trace"]
