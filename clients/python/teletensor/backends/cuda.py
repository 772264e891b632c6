"""Switches for products and attention on GPUs."""

from contextlib import AbstractContextManager

from ..cuda import is_available
from ..nn._sdpa_backends import SDPBackend, allowed_backends, sdpa_kernel
from ._products import matmul

__all__ = [
    "cudnn_sdp_enabled", "flash_sdp_enabled", "is_built", "math_sdp_enabled", "matmul",
    "mem_efficient_sdp_enabled", "sdp_kernel",
]  # fmt: skip


def is_built() -> bool:
    """Returns whether the daemon of the current session has GPUs; its program is the same everywhere."""
    return is_available()


def flash_sdp_enabled() -> bool:
    """Returns whether attention may be computed without the matrix of scores. See
    `nn.attention.sdpa_kernel`."""
    return SDPBackend.FLASH_ATTENTION in allowed_backends()


def mem_efficient_sdp_enabled() -> bool:
    """As flash_sdp_enabled()."""
    return SDPBackend.EFFICIENT_ATTENTION in allowed_backends()


def cudnn_sdp_enabled() -> bool:
    """As flash_sdp_enabled()."""
    return SDPBackend.CUDNN_ATTENTION in allowed_backends()


def math_sdp_enabled() -> bool:
    """Returns whether attention may compute the matrix of scores."""
    return SDPBackend.MATH in allowed_backends()


def sdp_kernel(
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> AbstractContextManager[None]:
    """`nn.attention.sdpa_kernel` with flags as arguments."""
    flags = {
        SDPBackend.FLASH_ATTENTION: enable_flash,
        SDPBackend.MATH: enable_math,
        SDPBackend.EFFICIENT_ATTENTION: enable_mem_efficient,
        SDPBackend.CUDNN_ATTENTION: enable_cudnn,
    }
    return sdpa_kernel([backend for backend, on in flags.items() if on])
