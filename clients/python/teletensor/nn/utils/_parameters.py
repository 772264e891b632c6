"""Functions of all parameters of a model: gradient clipping, and conversion to and from one vector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ... import _api as tt
from ..._tensors.tensor import Tensor

__all__ = [
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "parameters_to_vector",
    "vector_to_parameters",
]


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    if isinstance(parameters, Tensor):
        parameters = [parameters]
    gradients = [parameter.grad for parameter in parameters]
    return [gradient for gradient in gradients if gradient is not None]


def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all elements of all tensors, a 0-d tensor. error_if_nonfinite waits for it and raises
    RuntimeError if it is infinite or NaN."""
    tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    norms = [tt.norm(tensor, float(norm_type)) for tensor in tensors]
    return _norm_of_all(norms, float(norm_type), error_if_nonfinite)


def _norm_of_all(norms: list[Tensor], norm_type: float, error_if_nonfinite: bool) -> Tensor:
    if not norms:
        return tt.tensor(0.0)
    device = norms[0].device
    total = tt.norm(tt.stack([norm.to(device) for norm in norms]), norm_type)
    if error_if_nonfinite and not bool(tt.isfinite(total)):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients from `parameters` is "
            "non-finite, so it cannot be clipped. To disable this error and scale the gradients "
            "by the non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    total_norm: Tensor,
    foreach: bool | None = None,
) -> None:
    """Multiplies all gradients in place by max_norm / total_norm if that is less than 1."""
    with tt.no_grad():
        scale = (max_norm / (total_norm + 1e-6)).clamp(max=1.0)
        for gradient in _gradients(parameters):
            gradient.mul_(scale.to(gradient.device))


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scales all gradients in place so that their total norm is at most max_norm; returns the norm before
    scaling as a 0-d tensor. Does not wait for any value unless error_if_nonfinite is set. For parameters
    that `fully_shard` or `parallelize_module` has divided among ranks the norm is that of the whole
    gradients, and all ranks must call this function.

    >>> w = tt.nn.Parameter(tt.zeros(2))
    >>> (w * tt.tensor([3.0, 4.0])).sum().backward()
    >>> tt.nn.utils.clip_grad_norm_([w], max_norm=1.0).item()
    5.0
    """
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    with tt.no_grad():
        shards: list[Any] = [parameter for parameter in parameters if hasattr(parameter, "sharding")]
        others = [parameter for parameter in parameters if not hasattr(parameter, "sharding")]
        norms = [tt.norm(gradient, float(norm_type)) for gradient in _gradients(others)]
        if shards:
            from ...distributed.fsdp import _shards

            norms += _shards.gradient_norms(shards, float(norm_type))
        total = _norm_of_all(norms, float(norm_type), error_if_nonfinite)
    clip_grads_with_norm_(parameters, max_norm, total)
    return total


def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None
) -> None:
    """Clamps every element of all gradients in place to [-clip_value, clip_value]."""
    with tt.no_grad():
        for gradient in _gradients(parameters):
            gradient.clamp_(-float(clip_value), float(clip_value))


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The elements of all parameters in one vector, one parameter after the other."""
    return tt.cat([parameter.reshape(-1) for parameter in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copies the elements of `vec`, in the order of parameters_to_vector, into the parameters. ValueError
    if the number of elements differs; in that case nothing has been written."""
    parameters = list(parameters)
    expected = sum(parameter.numel() for parameter in parameters)
    if vec.dim() != 1 or vec.numel() != expected:
        raise ValueError(
            f"vector_to_parameters: shape {list(vec.shape)}, expected [{expected}]"
        )
    begin = 0
    with tt.no_grad():
        for parameter in parameters:
            end = begin + parameter.numel()
            parameter.copy_(vec[begin:end].reshape(tuple(parameter.shape)))
            begin = end
