"""Switches of products on GPUs."""

from ..cuda import is_available
from ._switches import Switches

__all__ = ["flash_sdp_enabled", "is_built", "math_sdp_enabled", "matmul", "mem_efficient_sdp_enabled"]

#: `allow_tf32` and the reduced-precision switches allow what the daemon never does.
matmul = Switches("torch.backends.cuda.matmul", allow_tf32=False,
                  allow_fp16_reduced_precision_reduction=True,
                  allow_bf16_reduced_precision_reduction=True, allow_fp16_accumulation=False)


def is_built() -> bool:
    """Has the daemon of the current session GPUs? Its program is the same everywhere."""
    return is_available()


def flash_sdp_enabled() -> bool:
    """False: attention has one way of its own."""
    return False


def mem_efficient_sdp_enabled() -> bool:
    """False: attention has one way of its own."""
    return False


def math_sdp_enabled() -> bool:
    """True."""
    return True
