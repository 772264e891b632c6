"""How precise products of GPUs are: one state behind PyTorch's two names for it."""

from typing import Any

from .. import _core
from ._switches import Switches

__all__ = ["float32_precision", "matmul", "set_float32_precision"]

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
