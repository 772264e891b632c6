"""The state of a program as tensors, and a description of the rest that can be sent as one object."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ..._core import Tensor

__all__ = ["joined", "taken_apart"]

_MAPPINGS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict}
_SEQUENCES: dict[str, type] = {"list": list, "tuple": tuple}


def taken_apart(value: Any, tensors: list[Tensor]) -> Any:
    """Appends the tensors in `value`, in its dicts, lists and tuples, to `tensors`. Returns the rest, which
    joined() puts together with them."""
    if isinstance(value, Tensor):
        tensors.append(value.detach())
        return ["tensor", len(tensors) - 1]
    kind: Any = type(value)
    name = kind.__name__
    if _MAPPINGS.get(name) is kind:
        return [name, [[key, taken_apart(each, tensors)] for key, each in value.items()]]
    if _SEQUENCES.get(name) is kind:
        return [name, [taken_apart(each, tensors) for each in value]]
    return ["value", value]


def joined(rest: Any, tensors: list[Tensor]) -> Any:
    """The value that taken_apart() has taken apart, with these tensors."""
    kind, content = rest
    if kind == "tensor":
        return tensors[content]
    if kind == "value":
        return content
    if kind in _MAPPINGS:
        return _MAPPINGS[kind]((key, joined(each, tensors)) for key, each in content)
    return _SEQUENCES[kind](joined(each, tensors) for each in content)
