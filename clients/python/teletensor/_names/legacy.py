"""Names that PyTorch keeps for older programs and for other libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


def _flatten_dense_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """The elements of all tensors, one after the other, as a vector."""
    out: Tensor = ops["cat"]([tensor.reshape(-1) for tensor in tensors], 0)
    return out


def _unflatten_dense_tensors(flat: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Parts of the vector with the shapes of these tensors."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    return tuple(part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True))


def _take_tensors(tensors: Iterable[Tensor], size_limit: int) -> Iterator[list[Tensor]]:
    """Lists of tensors of one type that have at least size_limit bytes together, and then the remaining
    tensors of each type."""
    held: dict[str, tuple[list[Tensor], int]] = {}
    for tensor in tensors:
        kind = tensor.type()
        parts, size = held.get(kind, ([], 0))
        size += tensor.numel() * tensor.element_size()
        held[kind] = ([*parts, tensor], size)
        if held[kind][1] >= size_limit:
            yield held[kind][0]
            held[kind] = ([], 0)
    yield from (parts for parts, _ in held.values() if parts)


def get_enum(reduction: str) -> int:
    """The number of a reduction of losses in PyTorch's C++ functions."""
    numbers = {"none": 0, "mean": 1, "elementwise_mean": 1, "sum": 2}
    if reduction not in numbers:
        raise ValueError(f"{reduction} is not a valid value for reduction")
    return numbers[reduction]
