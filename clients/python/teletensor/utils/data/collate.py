"""default_collate: a list of samples as one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import teletensor as tt

from ..._tensor import Tensor

__all__ = ["default_collate", "default_convert"]


def default_collate(batch: Sequence[Any]) -> Any:
    """Samples of the same structure as one structure of batches.

    Tensors and NumPy arrays of equal shapes are stacked into a tensor with a new first dimension,
    numbers become a 1-d tensor (floats float64, ints int64, bools bool), text and bytes stay as they are;
    mappings, tuples and lists are collated element by element. Raises TypeError for other types,
    RuntimeError for sequences of unequal lengths.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return tt.stack(list(batch))
    if isinstance(first, np.ndarray):
        return tt.tensor(np.stack(list(batch)))
    if isinstance(first, np.generic):
        return tt.tensor(np.asarray(batch))
    if isinstance(first, bool):
        return tt.tensor(list(batch), dtype=tt.bool)
    if isinstance(first, int):
        return tt.tensor(list(batch), dtype=tt.int64)
    if isinstance(first, float):
        return tt.tensor(list(batch), dtype=tt.float64)
    if isinstance(first, (str, bytes)):
        return batch
    if isinstance(first, Mapping):
        return {key: default_collate([sample[key] for sample in batch]) for key in first}
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise RuntimeError("each element in list of batch should be of equal size")
        columns = [default_collate(column) for column in zip(*batch, strict=True)]
        if hasattr(first, "_fields"):  # a named tuple
            return type(first)(*columns)
        return columns
    raise TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        f"found {type(first)}"
    )


def default_convert(data: Any) -> Any:
    """NumPy arrays and numbers of a sample as tensors, within mappings and sequences too; all else
    as it is."""
    if isinstance(data, (np.ndarray, np.generic)):
        return data if data.dtype.kind in "USO" else tt.tensor(np.asarray(data))
    if isinstance(data, Mapping):
        return {key: default_convert(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(value) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(default_convert(value) for value in data)
    return data
