"""PyTorch's switches of its just-in-time compiler. They are remembered without any other effect, because
the daemon decides which ops of a program are fused."""

from __future__ import annotations

import contextlib

__all__ = ["enable_onednn_fusion", "onednn_fusion_enabled", "optimized_execution", "set_fusion_strategy"]

_KINDS = ("STATIC", "DYNAMIC")
_onednn = False
_strategy = [("STATIC", 2), ("DYNAMIC", 10)]


def optimized_execution(should_optimize: bool) -> contextlib.AbstractContextManager[None]:
    """A context manager without effect: programs are always optimized."""
    return contextlib.nullcontext()


def enable_onednn_fusion(enabled: bool) -> None:
    """Sets what onednn_fusion_enabled() returns."""
    global _onednn
    _onednn = bool(enabled)


def onednn_fusion_enabled() -> bool:
    """Returns what enable_onednn_fusion() has set, at first False."""
    return _onednn


def set_fusion_strategy(strategy: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Sets a list of pairs of "STATIC" or "DYNAMIC" and a number, and returns the previous list. ValueError
    for another word."""
    global _strategy
    for kind, _ in strategy:
        if kind not in _KINDS:
            raise ValueError(f"FusionBehavior only supported 'STATIC' or 'DYNAMIC', got: {kind}")
    previous, _strategy = _strategy, list(strategy)
    return previous
