"""Fuses a batch norm in eval mode with the layer before it, and constructs layers without initialising
them."""

from __future__ import annotations

import copy
import inspect
from typing import Any

from ... import _api as tt
from ..._tensors.tensor import Tensor
from ..module import Module
from ..parameter import Parameter

__all__ = [
    "fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights",
    "skip_init",
]  # fmt: skip


def fuse_conv_bn_weights(
    conv_w: Tensor, conv_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float,
    bn_w: Tensor | None, bn_b: Tensor | None, transpose: bool = False,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """The weight and bias of one convolution that computes what a convolution followed by a batch norm in
    eval mode computes."""
    scale = tt.rsqrt(bn_rv + bn_eps)
    if bn_w is not None:
        scale = bn_w * scale
    shape = [1] * conv_w.dim()
    shape[1 if transpose else 0] = -1
    bias = (tt.zeros_like(bn_rm) if conv_b is None else conv_b) - bn_rm
    fused = bias * scale if bn_b is None else bias * scale + bn_b
    own = conv_w.requires_grad
    weight = (conv_w * scale.reshape(shape)).to(conv_w.dtype)
    flag = own if conv_b is None else conv_b.requires_grad
    return Parameter(weight.detach(), own), Parameter(fused.to(conv_w.dtype).detach(), flag)


def _fused(layer: Any, bn: Any, transpose: bool) -> Any:
    if layer.training or bn.training:
        raise RuntimeError("Fusion only for eval!")
    if bn.running_mean is None:
        raise RuntimeError("Only support fusing BatchNorm with tracked running stats")
    out = copy.deepcopy(layer)
    out.weight, out.bias = fuse_conv_bn_weights(
        out.weight, out.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, transpose
    )
    return out


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """Returns one convolution that replaces a convolution and the batch norm after it, both in eval
    mode."""
    return _fused(conv, bn, transpose)


def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float,
    bn_w: Tensor | None, bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """As fuse_conv_bn_weights, for a Linear layer."""
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """Returns one Linear layer that replaces a Linear layer and the batch norm after it, both in eval
    mode."""
    return _fused(linear, bn, False)


def skip_init(module_cls: type[Module], *args: Any, **kwargs: Any) -> Any:
    """Constructs a module of this class without initial values, on the CPU unless a `device` is given."""
    if not (isinstance(module_cls, type) and issubclass(module_cls, Module)):
        raise RuntimeError(f"Expected a Module; got {module_cls}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise RuntimeError("Module must support a 'device' arg to skip initialization")
    device = kwargs.pop("device", "cpu")
    kwargs["device"] = "meta"
    return module_cls(*args, **kwargs).to_empty(device=device)
