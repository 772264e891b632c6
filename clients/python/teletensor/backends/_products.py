"""The precision of products on GPUs: one state for PyTorch's two ways to set it."""

from typing import Any

from .. import _core
from ._switches import Switches

__all__ = ["float32_precision", "matmul", "set_float32_precision"]

_precision = "highest"


class _Products(Switches):
    """Only `allow_tf32` affects products; sums are always computed in float32."""

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
    """The value given to set_float32_precision(); after a change of `matmul.allow_tf32`, "high" or
    "highest"."""
    return _precision


def set_float32_precision(precision: str) -> None:
    """Sets the precision and `matmul.allow_tf32`, which is off for "highest"."""
    if precision not in ("highest", "high", "medium"):
        raise RuntimeError(f"{precision} is not one of 'highest', 'high', 'medium'")
    matmul.allow_tf32 = precision != "highest"
    global _precision
    _precision = precision
