"""Functions that compute the gradients of convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .. import _api as tt
from .._tensors.tensor import Tensor
from ..autograd import grad
from . import functional as F
from .functional._sizes import Size

__all__ = [
    "conv1d_input", "conv1d_weight", "conv2d_input", "conv2d_weight", "conv3d_input", "conv3d_weight",
]  # fmt: skip


def _gradient(of: Callable[[Tensor], Tensor], size: Sequence[int], grad_output: Tensor) -> Tensor:
    """The gradient of a linear function with respect to its argument of shape `size`."""
    recording = tt.is_grad_enabled()
    with tt.enable_grad():
        x = tt.zeros(size, dtype=grad_output.dtype, device=grad_output.device, requires_grad=True)
        (g,) = grad(of(x), x, grad_output, create_graph=recording)
    assert g is not None
    return g


def conv1d_input(input_size: Sequence[int], weight: Tensor, grad_output: Tensor, stride: Size = 1,
                 padding: Size = 0, dilation: Size = 1, groups: int = 1) -> Tensor:
    """The gradient of conv1d with respect to its input, which has the shape `input_size`."""
    return _gradient(lambda x: F.conv1d(x, weight, None, stride, padding, dilation, groups),
                     input_size, grad_output)


def conv1d_weight(input: Tensor, weight_size: Sequence[int], grad_output: Tensor, stride: Size = 1,
                  padding: Size = 0, dilation: Size = 1, groups: int = 1) -> Tensor:
    """The gradient of conv1d with respect to its weight, which has the shape `weight_size`."""
    return _gradient(lambda w: F.conv1d(input, w, None, stride, padding, dilation, groups),
                     weight_size, grad_output)


def conv2d_input(input_size: Sequence[int], weight: Tensor, grad_output: Tensor, stride: Size = 1,
                 padding: Size = 0, dilation: Size = 1, groups: int = 1) -> Tensor:
    """The gradient of conv2d with respect to its input, which has the shape `input_size`."""
    return _gradient(lambda x: F.conv2d(x, weight, None, stride, padding, dilation, groups),
                     input_size, grad_output)


def conv2d_weight(input: Tensor, weight_size: Sequence[int], grad_output: Tensor, stride: Size = 1,
                  padding: Size = 0, dilation: Size = 1, groups: int = 1) -> Tensor:
    """The gradient of conv2d with respect to its weight, which has the shape `weight_size`."""
    return _gradient(lambda w: F.conv2d(input, w, None, stride, padding, dilation, groups),
                     weight_size, grad_output)


def conv3d_input(input_size: Sequence[int], weight: Tensor, grad_output: Tensor, stride: Size = 1,
                 padding: Size = 0, dilation: Size = 1, groups: int = 1) -> Tensor:
    """The gradient of conv3d with respect to its input, which has the shape `input_size`."""
    return _gradient(lambda x: F.conv3d(x, weight, None, stride, padding, dilation, groups),
                     input_size, grad_output)


def conv3d_weight(input: Tensor, weight_size: Sequence[int], grad_output: Tensor, stride: Size = 1,
                  padding: Size = 0, dilation: Size = 1, groups: int = 1) -> Tensor:
    """The gradient of conv3d with respect to its weight, which has the shape `weight_size`."""
    return _gradient(lambda w: F.conv3d(input, w, None, stride, padding, dilation, groups),
                     weight_size, grad_output)
