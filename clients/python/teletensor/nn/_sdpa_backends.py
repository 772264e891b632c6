"""Which ways of computing attention are allowed."""

from __future__ import annotations

import enum
from contextvars import ContextVar

from .._scopes import Restoring

__all__ = ["FUSED", "SDPBackend", "allowed_backends", "sdpa_kernel"]


class SDPBackend(enum.IntEnum):
    """Ways to compute attention. MATH makes the matrix of scores; every fused one is the daemon's
    own way without it, on CPUs and GPUs."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


FUSED = frozenset(
    {SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION}
)
_allowed = ContextVar("sdpa_kernel", default=FUSED | {SDPBackend.MATH})


def sdpa_kernel(
    backends: list[SDPBackend] | SDPBackend, set_priority: bool = False
) -> Restoring:
    """Within it, scaled_dot_product_attention computes in one of these ways, or raises RuntimeError
    where none of them can. set_priority changes nothing: a fused way goes first."""
    chosen = [backends] if isinstance(backends, SDPBackend) else backends
    if not isinstance(chosen, list):
        raise AssertionError(
            "Backend must be an instance of SDPBackend or a list of SDPBackend instances, got "
            f"{type(backends).__name__}"
        )
    inside = frozenset(SDPBackend(backend) for backend in chosen)
    return Restoring(_allowed.get, lambda: _allowed.set(inside), _allowed.set)


def allowed_backends() -> frozenset[SDPBackend]:
    """The ways that are allowed here."""
    return _allowed.get()
