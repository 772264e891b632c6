"""Gradients: backward, grad, and the modes that decide whether operations are recorded."""

from __future__ import annotations

from typing import Any

from .._core import Tensor
from .._tensors import convert as _convert
from . import forward_ad, functional, graph
from ._anomaly import detect_anomaly, is_anomaly_enabled, set_detect_anomaly
from ._backward import backward, backward_stream, grad
from ._modes import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from .function import Function
from .gradcheck import GradcheckError, gradcheck, gradgradcheck

__all__ = [
    "Function", "GradcheckError", "Variable", "backward", "backward_stream", "detect_anomaly",
    "enable_grad", "forward_ad", "functional", "grad", "gradcheck", "gradgradcheck", "graph",
    "inference_mode", "is_anomaly_enabled", "is_grad_enabled", "is_inference_mode_enabled",
    "no_grad", "set_detect_anomaly", "set_grad_enabled",
]


class _VariableType(type):
    def __call__(cls, data: Any = None, requires_grad: bool = False) -> Tensor:
        made = _convert.tensor([]) if data is None else data.detach()
        return made.requires_grad_() if requires_grad else made

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Tensor)


class Variable(metaclass=_VariableType):
    """PyTorch's older name of a tensor: `Variable(x)` shares x's memory, without its history."""
