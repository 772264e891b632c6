"""Switches of products on GPUs."""

from contextlib import AbstractContextManager
from typing import Any

from .. import _core
from ..cuda import is_available
from ..nn._sdpa_backends import SDPBackend, allowed_backends, sdpa_kernel
from ._switches import Switches

__all__ = [
    "cudnn_sdp_enabled", "flash_sdp_enabled", "float32_precision", "is_built", "math_sdp_enabled", "matmul",
    "mem_efficient_sdp_enabled", "sdp_kernel", "set_float32_precision",
]  # fmt: skip

_precision = "highest"


class _Products(Switches):
    """Of these, `allow_tf32` changes products; sums are float32's whatever the others allow."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "allow_tf32":
            global _precision
            _precision = "high" if value else "highest"
            _core.set_tf32_in_products(value)


matmul = _Products("torch.backends.cuda.matmul", allow_tf32=False,
                   allow_fp16_reduced_precision_reduction=True,
                   allow_bf16_reduced_precision_reduction=True, allow_fp16_accumulation=False)


def float32_precision() -> str:
    """What set_float32_precision() was given; "high" or "highest" by `matmul.allow_tf32` otherwise."""
    return _precision


def set_float32_precision(precision: str) -> None:
    """Sets `matmul.allow_tf32`: "highest" is off."""
    if precision not in ("highest", "high", "medium"):
        raise RuntimeError(f"{precision} is not one of 'highest', 'high', 'medium'")
    matmul.allow_tf32 = precision != "highest"
    global _precision
    _precision = precision


def is_built() -> bool:
    """Has the daemon of the current session GPUs? Its program is the same everywhere."""
    return is_available()


def flash_sdp_enabled() -> bool:
    """May attention be computed without its scores? See `nn.attention.sdpa_kernel`."""
    return SDPBackend.FLASH_ATTENTION in allowed_backends()


def mem_efficient_sdp_enabled() -> bool:
    """As flash_sdp_enabled()."""
    return SDPBackend.EFFICIENT_ATTENTION in allowed_backends()


def cudnn_sdp_enabled() -> bool:
    """As flash_sdp_enabled()."""
    return SDPBackend.CUDNN_ATTENTION in allowed_backends()


def math_sdp_enabled() -> bool:
    """May the matrix of attention's scores be made?"""
    return SDPBackend.MATH in allowed_backends()


def sdp_kernel(
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> AbstractContextManager[None]:
    """`nn.attention.sdpa_kernel`, by flags."""
    flags = {
        SDPBackend.FLASH_ATTENTION: enable_flash,
        SDPBackend.MATH: enable_math,
        SDPBackend.EFFICIENT_ATTENTION: enable_mem_efficient,
        SDPBackend.CUDNN_ATTENTION: enable_cudnn,
    }
    return sdpa_kernel([backend for backend, on in flags.items() if on])
