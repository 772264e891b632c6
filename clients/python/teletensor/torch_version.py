"""The version of PyTorch that a program asks for: a string that compares as a version."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["TorchVersion"]

_PARTS = re.compile(r"v?(\d+(?:\.\d+)*)(?:[._-]?(a|b|rc|dev)[a-z]*\.?(\d*))?")
_STAGES = {"dev": 0, "a": 1, "b": 2, "rc": 3, "": 4}


def _order(version: Any) -> tuple[list[int], int, int]:
    """The sort key of a version such as "2.1.0", (2, 1), or packaging's Version."""
    text = ".".join(map(str, version)) if isinstance(version, (tuple, list)) else str(version)
    found = _PARTS.match(text)
    if found is None:
        raise ValueError(f"{version!r} is not a valid version")
    numbers = [int(number) for number in found.group(1).split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return numbers, _STAGES[found.group(2) or ""], int(found.group(3) or 0)


class TorchVersion(str):
    """A version that compares with strings, tuples and versions: TorchVersion("2.10.0") > "2.9".

    >>> from teletensor.torch_version import TorchVersion
    >>> TorchVersion("2.10.0") > "2.9", TorchVersion("2.10.0") >= (2, 10), TorchVersion("2.1.0rc1") < "2.1"
    (True, True, True)
    """

    def __lt__(self, other: Any) -> bool:
        return _order(self) < _order(other)

    def __le__(self, other: Any) -> bool:
        return _order(self) <= _order(other)

    def __gt__(self, other: Any) -> bool:
        return _order(self) > _order(other)

    def __ge__(self, other: Any) -> bool:
        return _order(self) >= _order(other)

    def __eq__(self, other: object) -> bool:
        try:
            return _order(self) == _order(other)
        except ValueError:
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return str.__hash__(self)
