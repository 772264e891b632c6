"""Which implementations of scaled dot-product attention are allowed."""

from __future__ import annotations

import enum
from contextvars import ContextVar

from .._sessions.scopes import Restoring

__all__ = ["FUSED", "SDPBackend", "allowed_backends", "sdpa_kernel"]


class SDPBackend(enum.IntEnum):
    """Implementations of attention. MATH computes the whole matrix of scores; all fused names mean the
    daemon's own fused implementation, on CPUs and GPUs."""

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
    """Within this context, scaled_dot_product_attention uses one of these implementations, and raises
    RuntimeError if none of them can be used. set_priority has no effect: a fused implementation is always
    preferred."""
    chosen = [backends] if isinstance(backends, SDPBackend) else backends
    if not isinstance(chosen, list):
        raise AssertionError(
            "Backend must be an instance of SDPBackend or a list of SDPBackend instances, got "
            f"{type(backends).__name__}"
        )
    inside = frozenset(SDPBackend(backend) for backend in chosen)
    return Restoring(_allowed.get, lambda: _allowed.set(inside), _allowed.set)


def allowed_backends() -> frozenset[SDPBackend]:
    """Returns the implementations that are allowed now."""
    return _allowed.get()
