"""Size, the shape of a tensor."""

from __future__ import annotations

from typing import Any

from .. import _core

__all__ = ["Size"]


class Size(tuple[int, ...]):
    """The shape of a tensor."""

    def numel(self) -> int:
        """The number of elements of a tensor of that shape."""
        out = 1
        for size in self:
            out *= size
        return out

    def __repr__(self) -> str:
        return f"{_core.text_prefix()}.Size({list(self)})"

    def __getitem__(self, index: Any) -> Any:
        out = tuple.__getitem__(self, index)
        return Size(out) if isinstance(index, slice) else out

    def __add__(self, other: tuple[Any, ...]) -> Size:
        return Size(tuple.__add__(self, other))

    def __radd__(self, other: tuple[Any, ...]) -> Size:
        return Size(tuple.__add__(other, self))

    def __mul__(self, times: Any) -> Size:
        return Size(tuple.__mul__(self, times))

    __rmul__ = __mul__
