"""default_collate and default_convert: combine lists of samples to one batch, and convert samples to
tensors."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from ... import _api as tt
from ..._tensors.arrays import tensor_of
from ..._tensors.interop import array_of_torch
from ..._tensors.tensor import Tensor

__all__ = ["default_collate", "default_convert", "is_torch"]

# (name of a dtype, array) -> the object that represents the tensor in a batch
Make = Callable[[str, np.ndarray[Any, Any]], Any]


def default_collate(batch: Sequence[Any], *, make: Make = tensor_of) -> Any:
    """Combines samples of the same structure to one structure of batches.

    Tensors, PyTorch's tensors and NumPy arrays of equal shapes are stacked to a tensor with a new first
    dimension; numbers become a 1-d tensor (floats float64, ints int64, bools bool); text and bytes are
    unchanged; mappings, named tuples, tuples (as lists) and lists are collated element by element.
    TypeError for other types, RuntimeError for arrays of different shapes and sequences of unequal lengths.

    `make` creates a tensor from (name of the dtype, NumPy array).
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return tt.stack(list(batch))
    if is_torch(first):
        return make(*array_of_torch(_stack_torch(batch)))
    if isinstance(first, np.ndarray):
        return _made(_stacked(batch), make)
    if isinstance(first, np.generic):
        return _made(np.asarray(batch), make)
    for kind, dtype in ((bool, "bool"), (int, "int64"), (float, "float64")):
        if isinstance(first, kind):
            return make(dtype, np.array(batch, dtype))
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return _like_mapping(
            first, {k: default_collate([sample[k] for sample in batch], make=make) for k in first}
        )
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        columns = [default_collate(column, make=make) for column in zip(*batch, strict=True)]
        return _like_sequence(first, columns)
    raise _refused(type(first))


def default_convert(data: Any, *, make: Make = tensor_of) -> Any:
    """Converts NumPy arrays and numbers and PyTorch's tensors in a sample to tensors, also within mappings
    and sequences; all other objects are unchanged. `make` is as in default_collate."""
    if isinstance(data, (np.ndarray, np.generic)):
        return data if data.dtype.kind in "USO" else _made(np.asarray(data), make)
    if is_torch(data):
        return make(*array_of_torch(data))
    if isinstance(data, Mapping):
        return _like_mapping(data, {k: default_convert(v, make=make) for k, v in data.items()})
    if isinstance(data, Sequence) and not isinstance(data, (str, bytes)):
        return _like_sequence(data, [default_convert(value, make=make) for value in data])
    return data


def is_torch(value: Any) -> bool:
    """Returns whether the object is a PyTorch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _refused(kind: Any) -> TypeError:
    return TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        f"found {kind}"
    )


def _made(array: np.ndarray[Any, Any], make: Make) -> Any:
    if array.dtype.kind in "USO":
        raise _refused(array.dtype)
    return make(str(array.dtype), array)


def _stacked(batch: Sequence[Any]) -> np.ndarray[Any, Any]:
    """The arrays, which have the same shape, stacked along a new first dimension."""
    arrays = [np.asarray(each) for each in batch]
    _check_shapes([list(array.shape) for array in arrays])
    return np.stack(arrays)


def _stack_torch(batch: Sequence[Any]) -> Any:
    import torch

    _check_shapes([list(each.shape) for each in batch])
    return torch.stack(list(batch))


def _check_shapes(shapes: list[list[int]]) -> None:
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {shapes[0]} at entry 0 and "
                f"{shape} at entry {i}"
            )


def _like_mapping(sample: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """A mapping of the sample's type with these values; a dict if the type cannot be constructed from
    them."""
    try:
        if isinstance(sample, MutableMapping):
            clone = copy.copy(sample)
            clone.update(values)
            return clone
        return type(sample)(values)  # type: ignore[call-arg]
    except TypeError:
        return values


def _like_sequence(sample: Sequence[Any], values: list[Any]) -> Any:
    """A sequence of the sample's type with these values; a list for tuples, and if the type cannot be
    constructed from them."""
    if isinstance(sample, tuple):
        return type(sample)(*values) if hasattr(sample, "_fields") else values
    try:
        if isinstance(sample, MutableSequence):
            clone = copy.copy(sample)
            for i, value in enumerate(values):
                clone[i] = value
            return clone
        return type(sample)(values)  # type: ignore[call-arg]
    except TypeError:
        return values
