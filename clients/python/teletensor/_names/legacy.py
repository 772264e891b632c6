"""Names that PyTorch keeps for older programs and for other libraries."""

from __future__ import annotations

from typing import Any

from .._core import Tensor, described, ops
from .._tensors.tensor_types import tensor_type

__all__ = ["_assert", "_assert_async", "set_default_tensor_type", "spmm"]


def set_default_tensor_type(t: Any) -> None:
    """Sets the dtype and device of new tensors by the name of an older tensor type: `FloatTensor`,
    "torch.cuda.HalfTensor", ...

    AttributeError for an unknown name, TypeError for a type that is not floating-point."""
    from .. import _api as tt

    try:
        kind = tensor_type(t)
    except ValueError as error:
        raise AttributeError(str(error)) from None
    if not kind.dtype.is_floating_point:
        raise TypeError(f"only floating-point types are supported as the default type, not {kind.dtype}")
    tt.set_default_device("cuda" if kind.cuda else "cpu")
    tt.set_default_dtype(kind.dtype)


def spmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The matrix product of two matrices, as `mm`; the first may be sparse."""
    out: Tensor = ops["mm"](input, mat2)
    return out


def _assert(condition: Any, message: Any) -> None:
    """AssertionError with the message unless the condition is true."""
    assert condition, message


def _assert_async(
    input: Tensor, assert_msg: str = "Expected Tensor with single nonzero value, but got zero"
) -> None:
    """RuntimeError if the tensor's only element is zero. Waits for its value."""
    if not isinstance(input, Tensor):
        raise TypeError(f"_assert_async: input must be a Tensor, not {described(input)}")
    if not input.item():
        raise RuntimeError(assert_msg)


def _log_api_usage_once(event: str) -> None:
    """Does nothing, as PyTorch's does if no logger is registered."""
