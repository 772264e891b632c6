"""Makers of nested tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from .. import _api as tt
from .._core import Tensor
from ._ragged import Ragged
from ._tensor import NestedTensor

__all__ = [
    "as_nested_tensor", "masked_select", "narrow", "nested_tensor", "nested_tensor_from_jagged",
]  # fmt: skip


def _jagged(name: str, layout: Any) -> None:
    if layout not in (None, tt.jagged):
        raise NotImplementedError(
            f"{name}(): the layout {layout} is not supported: nested tensors have the layout jagged"
        )


def _joined(name: str, parts: Sequence[Tensor], dtype: Any, device: Any) -> NestedTensor:
    """The nested tensor of these tensors, with their history."""
    if not parts:
        raise RuntimeError(f"{name}(): the list has no tensors")
    first = parts[0]
    differing = [d for d in range(first.dim()) if len({tuple(part.shape[d : d + 1]) for part in parts}) > 1]
    if first.dim() == 0 or len({part.dim() for part in parts}) > 1 or len(differing) > 1:
        raise RuntimeError(
            f"{name}(): Cannot represent given tensor list as a nested tensor with the jagged layout. Note "
            "that the jagged layout only represents shapes of the form (B, *, D_0, ..., D_N), with only * "
            f"allowed to be ragged; got {[list(each.shape) for each in parts[:10]]}"
        )
    at = differing[0] if differing else 0
    target = first.device if device is None else device
    moved = [part.to(device=target, dtype=first.dtype if dtype is None else dtype) for part in parts]
    values = tt.cat(moved, at)
    return NestedTensor(values, Ragged([part.shape[at] for part in parts], values.device), at + 1)


def nested_tensor(
    tensor_list: Any,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> NestedTensor:
    """A nested tensor without history with copies of the tensors, or of anything that `tensor` takes, which
    may differ in one size: the ragged dimension, the first one if all are equal. It has the layout jagged.
    RuntimeError for other differences of shape.

    >>> tt.nested.nested_tensor([tt.arange(3), tt.arange(2)]).offsets().tolist()
    [0, 3, 5]
    """
    _jagged("nested_tensor", layout)
    if not isinstance(tensor_list, (list, tuple)):
        raise TypeError("nested_tensor(): Expected a list or tuple of tensors or of data for them")
    with tt.no_grad():
        parts = [part if isinstance(part, Tensor) else tt.as_tensor(part) for part in tensor_list]
        made = _joined("nested_tensor", parts, dtype, device)
    return made._like(made._data.clone()).requires_grad_(requires_grad)


def as_nested_tensor(ts: Any, dtype: Any = None, device: Any = None, layout: Any = None) -> NestedTensor:
    """The nested tensor of the tensors, which may differ in one size, or of the slices of a tensor
    [batch, length, ...], through which gradients flow. A nested tensor is returned as it is, or converted
    to dtype and device. RuntimeError if the tensors differ in more than one size."""
    _jagged("as_nested_tensor", layout)
    if isinstance(ts, NestedTensor):
        return ts.to(device=device, dtype=dtype)
    if isinstance(ts, Tensor):
        if ts.dim() < 2:
            raise RuntimeError("as_nested_tensor(): Expected tensor argument to have dim() > 1")
        values = ts.to(device=device, dtype=dtype).flatten(0, 1)
        return NestedTensor(values, Ragged([ts.shape[1]] * ts.shape[0], values.device))
    if not isinstance(ts, (list, tuple)) or not all(isinstance(part, Tensor) for part in ts):
        raise TypeError(
            "as_nested_tensor(): Expected first argument to be a tensor or a list / tuple of tensors"
        )
    return _joined("as_nested_tensor", ts, dtype, device)


def _whole_numbers(name: str, given: Any) -> list[int]:
    """The elements of a vector of integers. Waits for them."""
    if not isinstance(given, Tensor) or given.dim() != 1 or given.is_floating_point() or given.is_complex():
        raise RuntimeError(f"nested_tensor_from_jagged(): {name} must be a vector of integers")
    numbers: list[int] = given.tolist()
    return numbers


def nested_tensor_from_jagged(
    values: Tensor,
    offsets: Tensor | None = None,
    lengths: Tensor | None = None,
    jagged_dim: int | None = None,
    min_seqlen: int | None = None,
    max_seqlen: int | None = None,
) -> NestedTensor:
    """The nested tensor whose tensors follow one another in the values [total, ...]: tensor b begins at
    offsets[b] and ends at offsets[b + 1], or has lengths[b] rows. With both, rows between the tensors are
    left out, which copies the values. `jagged_dim` is the ragged dimension of the nested tensor; the
    dimension jagged_dim - 1 of the values has the rows. Gradients flow to the values. Waits for offsets and
    lengths; `min_seqlen` and `max_seqlen` have no effect. RuntimeError for offsets that are not ascending
    from 0 within the rows."""
    if not isinstance(values, Tensor):
        raise TypeError("nested_tensor_from_jagged(): values must be a tensor")
    if offsets is None and lengths is None:
        raise RuntimeError("nested_tensor_from_jagged(): At least one of offsets or lengths is required.")
    dim = 1 if jagged_dim is None else jagged_dim
    if dim < 1:
        raise ValueError(f"Expected jagged_dim >=1, but got {dim}.")
    if dim > values.dim():
        raise ValueError(f"Expected jagged_dim <={values.dim()}, but got {dim}.")
    sizes = None if lengths is None else _whole_numbers("lengths", lengths)
    if offsets is None:
        assert sizes is not None
        bounds = [0, *itertools.accumulate(sizes)]
    else:
        bounds = _whole_numbers("offsets", offsets)
    total = values.shape[dim - 1]
    steps = [end - begin for begin, end in itertools.pairwise(bounds)]
    if not bounds or bounds[0] != 0 or min(steps, default=0) < 0 or bounds[-1] > total:
        raise RuntimeError(
            "nested_tensor_from_jagged(): offsets must ascend from 0 to at most the number of rows "
            f"{total}, and lengths must not be negative, but got {bounds[:20]}"
        )
    if sizes is not None and (len(sizes) != len(steps) or any(
        not 0 <= n <= step for n, step in zip(sizes, steps, strict=False)
    )):
        raise RuntimeError(
            "nested_tensor_from_jagged(): lengths must be from 0 to the differences of the offsets, but "
            f"got {sizes[:20]} for {steps[:20]}"
        )
    used = steps if sizes is None else sizes
    if sum(used) != total:
        kept = [row for begin, n in zip(bounds, used, strict=False) for row in range(begin, begin + n)]
        values = values.index_select(dim - 1, tt.tensor(kept, dtype=tt.int64, device=values.device))
    return NestedTensor(values.view_as(values), Ragged(used, values.device), dim)


def narrow(
    tensor: Tensor, dim: int, start: int | Tensor, length: int | Tensor, layout: Any = None
) -> NestedTensor:
    """The nested tensor with the slices start[b] to start[b] + length[b] - 1 along dimension 1 of each
    tensor b of a dense batch. `start` and `length` are integers, or tensors [batch] of them, for which it
    waits. RuntimeError for a slice that is not inside."""
    _jagged("narrow", layout)
    if dim != 1:
        raise RuntimeError("jagged layout only supports dim=1")
    if tensor.dim() < 2:
        raise RuntimeError("narrow(): Expected tensor argument to have dim() > 1")
    batch, size = tensor.shape[:2]
    both = []
    for each in (start, length):
        numbers = each.reshape(-1).tolist() if isinstance(each, Tensor) else [int(each)]
        both.append(numbers * batch if len(numbers) == 1 else numbers)
    starts, lengths = both
    if len(starts) != batch or len(lengths) != batch or any(
        first < 0 or n < 0 or first + n > size for first, n in zip(starts, lengths, strict=True)
    ):
        raise RuntimeError(
            f"narrow(): start and length must be {batch} slices inside of the size {size}, but got "
            f"{starts[:20]} and {lengths[:20]}"
        )
    kept = [b * size + i for b in range(batch) for i in range(starts[b], starts[b] + lengths[b])]
    rows = tensor.flatten(0, 1).index_select(0, tt.tensor(kept, dtype=tt.int64, device=tensor.device))
    return NestedTensor(rows, Ragged(lengths, rows.device))


def masked_select(tensor: Tensor, mask: Tensor) -> NestedTensor:
    """The elements of each row of a tensor [..., n] at which the mask (bool, broadcast to the tensor) is
    true: a nested tensor of two dimensions. Waits for the numbers of elements."""
    wide = mask.expand(tensor.shape)
    lengths = wide.sum(-1).reshape(-1).tolist()
    values = tensor.masked_select(wide)
    return NestedTensor(values, Ragged(lengths, values.device))
