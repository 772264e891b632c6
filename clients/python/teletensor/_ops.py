"""The catalog's ops as they are, by name: `_ops.linear(x, weight, bias)`. In-place forms end in "_"."""

from __future__ import annotations

from typing import Any

from . import _core

__all__: list[str] = []

globals().update(_core.ops)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"the catalog has no op {name!r}")
