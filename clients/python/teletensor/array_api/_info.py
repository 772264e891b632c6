"""The result of __array_namespace_info__."""

from __future__ import annotations

import builtins
from typing import Any

from .. import _core
from .._core import dtype as DType
from .._sessions.session import current_session
from .._tensors import convert as _convert
from ._creation import default_complex, default_float
from ._dtypes import BY_NAME, KINDS

__all__ = ["Info"]

MAX_RANK = 12


class Info:
    """The capabilities of the namespace, its devices and its dtypes."""

    def capabilities(self) -> dict[str, Any]:
        """Whether boolean masks and data-dependent shapes are supported, and the maximum number of axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": MAX_RANK}

    def default_device(self) -> _core.device:
        """The device of new arrays."""
        return _convert.default_device()

    def devices(self) -> tuple[_core.device, ...]:
        """The daemon's devices."""
        return tuple(_core.device(name) for name in current_session().devices)

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The dtypes to which Python scalars are converted."""
        return {
            "real floating": default_float(),
            "complex floating": default_complex(),
            "integral": BY_NAME["int64"],
            "indexing": BY_NAME["int64"],
        }

    def dtypes(
        self, *, device: Any = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The names and dtypes of a kind, of several kinds, or of all."""
        if kind is None:
            return dict(BY_NAME)
        kinds = (kind,) if isinstance(kind, builtins.str) else kind
        unknown = [each for each in kinds if each not in KINDS]
        if unknown:
            raise ValueError(f"unknown kinds of dtypes: {unknown}")
        return {
            name: dtype for name, dtype in BY_NAME.items() if any(name in KINDS[k] for k in kinds)
        }
