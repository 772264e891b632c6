"""Converts the elements of PyTorch's CPU tensors to flat NumPy arrays and back.

c10d's collectives work on numbers of elements and not on shapes, so all data for a daemon are
one-dimensional. An array shares the memory of its tensor if that is contiguous. Dtypes that the daemon does
not have are sent as integers of the same size in operations that only move elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._tensors.arrays import DTYPES

try:
    import torch
except ImportError as error:
    raise ImportError(
        "teletensor.integrations.torch_backend needs PyTorch: pip install 'teletensor[torch]'"
    ) from error

__all__ = ["Elements", "check", "joined", "split", "write"]

_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


class Elements(NamedTuple):
    """The name of the daemon's dtype, and the elements in NumPy's form of that dtype (`DTYPES`)."""

    dtype: str
    array: np.ndarray[Any, Any]


def check(tensors: Sequence[Any], name: str) -> None:
    """ValueError for a tensor that is not a strided CPU tensor."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: expected a tensor, not {type(tensor).__name__}")
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
            raise ValueError(
                f"{name}: the backend teletensor takes strided tensors on a CPU, not {tensor.dtype} of "
                f"layout {tensor.layout} on {tensor.device}"
            )


def _plain(tensor: Any, moved: bool) -> tuple[str, Any]:
    """The name of the daemon's dtype, and a tensor with the same strides in a dtype that NumPy has."""
    name = str(tensor.dtype).rpartition(".")[2]
    if name not in DTYPES:
        if not moved or tensor.element_size() not in _BITS:
            raise TypeError(f"the daemon cannot compute with {tensor.dtype}")
        name = _BITS[tensor.element_size()]
        return name, tensor.view(getattr(torch, name))
    return name, tensor.view(torch.int16) if name == "bfloat16" else tensor


def joined(tensors: Sequence[Any], moved: bool) -> Elements:
    """The concatenated elements of all tensors. `moved`: the elements are only moved, not computed with,
    and may have several dtypes, which are sent as bytes. TypeError for dtypes that the daemon does not
    have."""
    parts = [_elements(tensor, moved) for tensor in tensors]
    names = {part.dtype for part in parts}
    if len(names) > 1:
        if not moved:
            raise TypeError(f"the tensors must have one dtype, got {', '.join(sorted(names))}")
        parts = [Elements("uint8", part.array.view(np.uint8)) for part in parts]
    if len(parts) == 1:
        return parts[0]
    return Elements(parts[0].dtype, np.concatenate([part.array for part in parts]))


def _elements(tensor: Any, moved: bool) -> Elements:
    plain = tensor.detach().resolve_conj().resolve_neg()
    name, plain = _plain(plain.contiguous(), moved)
    return Elements(name, plain.numpy().reshape(-1).view(DTYPES[name]))


def split(array: np.ndarray[Any, Any], tensors: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Splits the result of `joined` into the parts for such tensors, of one or of several dtypes."""
    bytes_ = [tensor.numel() * tensor.element_size() for tensor in tensors]
    if array.nbytes != sum(bytes_):
        raise ValueError(f"{array.nbytes} bytes were received for tensors of {sum(bytes_)} bytes")
    ends = np.cumsum(bytes_) // array.itemsize
    return np.split(array, ends[:-1])


def write(tensor: Any, array: np.ndarray[Any, Any]) -> None:
    """Overwrites the elements of the tensor, for any strides, without involving autograd."""
    target = tensor.detach()
    if target.is_conj() or target.is_neg():
        fresh = torch.empty_like(target.resolve_conj().resolve_neg())
        write(fresh, array)
        target.copy_(fresh)
        return
    seen = _plain(target, moved=True)[1].numpy()
    np.copyto(seen, array.view(seen.dtype).reshape(seen.shape))
