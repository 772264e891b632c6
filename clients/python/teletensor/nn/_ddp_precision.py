"""The dtypes of a DistributedDataParallel whose computation has a lower precision than its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._calls.tree import flatten, unflatten
from .._core import Tensor
from ..func import functional_call
from .module import Module

__all__ = ["call", "cast_buffers", "reduced_dtype"]


@dataclass
class _MixedPrecision:
    """The argument mixed_precision of DistributedDataParallel. Only floating-point tensors are cast.

    param_dtype: the dtype of the parameters and inputs of a forward, and hence of the computation. The
        parameters themselves, and their gradients, keep their own.
    reduce_dtype: the dtype of the gradients while they are averaged. None means param_dtype.
    buffer_dtype: the dtype to which the buffers are cast once."""

    param_dtype: Any = None
    reduce_dtype: Any = None
    buffer_dtype: Any = None


def reduced_dtype(precision: Any) -> Any:
    """The dtype of gradients while they are averaged; None if that is their own."""
    if precision is None:
        return None
    return precision.param_dtype if precision.reduce_dtype is None else precision.reduce_dtype


def cast_buffers(module: Module, precision: Any) -> None:
    if precision is not None and precision.buffer_dtype is not None:
        for each in module.buffers():
            each.data = _cast(each, precision.buffer_dtype)


def call(module: Module, precision: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns module(*args, **kwargs), computed with casts of its parameters and inputs."""
    if precision is None or precision.param_dtype is None:
        return module(*args, **kwargs)
    dtype = precision.param_dtype
    leaves, spec = flatten((args, kwargs))
    args, kwargs = unflatten([_cast(each, dtype) for each in leaves], spec)
    parameters = {name: _cast(each, dtype) for name, each in module.named_parameters()}
    return functional_call(module, parameters, args, kwargs)


def _cast(value: Any, dtype: Any) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
