"""The catalog's ops by name: `_ops.linear(x, weight, bias)`. Names of in-place forms end in "_"."""

from __future__ import annotations

from collections.abc import Callable

from .. import _core
from .._core import Tensor

__all__: list[str] = []

globals().update(_core.ops)


def named(name: str) -> Callable[..., Tensor]:
    """Returns the op of that name; copying and unpickling find an op by it."""
    op: Callable[..., Tensor] = _core.ops[name]
    return op


def __getattr__(name: str) -> Callable[..., Tensor]:
    raise AttributeError(f"the catalog has no op {name!r}")
