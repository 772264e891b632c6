"""Converts the elements of PyTorch's tensors to flat arrays and back: those of CPU tensors to NumPy arrays,
and those of the device "tt" to tensors of the daemon.

c10d's collectives work on numbers of elements and not on shapes, so all data for a daemon are
one-dimensional. An array shares the memory of its tensor if that is contiguous. Dtypes that the daemon does
not have are sent as integers of the same size in operations that only move elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from .._tensors.arrays import DTYPES
from ..autograd import no_grad

try:
    import torch
except ImportError as error:
    raise ImportError(
        "teletensor.integrations.torch_backend needs PyTorch: pip install 'teletensor[torch]'"
    ) from error

__all__ = ["Elements", "check", "is_on_device", "joined", "rows", "split", "write"]

_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


class Elements(NamedTuple):
    """The name of the daemon's dtype, and the elements: a NumPy array in its form of that dtype (`DTYPES`),
    or a tensor of the daemon."""

    dtype: str
    array: Any

    @property
    def numel(self) -> int:
        """The number of elements."""
        return int(self.array.size if isinstance(self.array, np.ndarray) else self.array.numel())


def is_on_device(tensor: Any) -> bool:
    """Returns whether a tensor of PyTorch is on the device "tt" of teletensor.torch."""
    return bool(tensor.device.type == "tt")


def check(tensors: Sequence[Any], name: str) -> None:
    """ValueError for a tensor that is not a strided tensor on the CPU or on the device "tt", and for
    tensors on both."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name}: expected a tensor, not {type(tensor).__name__}")
        if (tensor.device.type not in ("cpu", "tt") or tensor.layout != torch.strided
                or tensor.is_quantized):
            raise ValueError(
                f"{name}: the backend teletensor takes strided tensors on a CPU or on the device tt, not "
                f"{tensor.dtype} of layout {tensor.layout} on {tensor.device}"
            )
        if tensor.device != tensors[0].device:
            raise ValueError(
                f"{name}: the tensors must be on one device, not on {tensors[0].device} and {tensor.device}"
            )


def _operand(tensor: Any) -> _core.Tensor:
    """The tensor of the daemon that shares memory with a tensor on the device "tt"."""
    from ..torch import _trace

    operand: _core.Tensor = _core.torch_operand(*_trace.bridge.record(tensor))
    return operand


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
    if len(tensors) == 1:
        return _elements(tensors[0], moved)
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 and not moved:
        names = sorted(str(dtype).rpartition(".")[2] for dtype in dtypes)
        raise TypeError(f"the tensors must have one dtype, got {', '.join(names)}")
    if tensors and is_on_device(tensors[0]):
        flat = [_flat(tensor) for tensor in tensors]
        with torch.no_grad():
            together = torch.cat(flat if len(dtypes) == 1 else [part.view(torch.uint8) for part in flat])
        return _elements(together, moved)
    parts = [_elements(tensor, moved) for tensor in tensors]
    if len(dtypes) > 1:
        parts = [Elements("uint8", part.array.view(np.uint8)) for part in parts]
    return Elements(parts[0].dtype, np.concatenate([part.array for part in parts]))


def _flat(tensor: Any) -> Any:
    """The elements as they are in memory, in one dimension."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


def _elements(tensor: Any, moved: bool) -> Elements:
    flat = _flat(tensor)
    if is_on_device(flat):
        return Elements(str(flat.dtype).rpartition(".")[2], _operand(flat))
    name, plain = _plain(flat, moved)
    return Elements(name, plain.numpy().view(DTYPES[name]))


def rows(array: Any, number: int) -> list[Any]:
    """Splits an array into that number of equal parts."""
    if isinstance(array, np.ndarray):
        return np.split(array, number)
    with no_grad():
        return list(array.reshape(number, array.numel() // number).unbind(0))


def split(array: Any, tensors: Sequence[Any]) -> list[Any]:
    """Splits the result of `joined` into the parts for such tensors, of one or of several dtypes."""
    bytes_ = [tensor.numel() * tensor.element_size() for tensor in tensors]
    if array.nbytes != sum(bytes_):
        raise ValueError(f"{array.nbytes} bytes were received for tensors of {sum(bytes_)} bytes")
    if len(tensors) == 1:
        return [array]
    if isinstance(array, np.ndarray):
        return np.split(array, np.cumsum(bytes_)[:-1] // array.itemsize)
    with no_grad():
        return list(array.split([size // array.itemsize for size in bytes_]))


def write(tensor: Any, array: Any) -> None:
    """Overwrites the elements of the tensor, for any strides, without involving autograd."""
    target = tensor.detach()
    if target.is_conj() or target.is_neg():
        fresh = torch.empty_like(target.resolve_conj().resolve_neg())
        write(fresh, array)
        target.copy_(fresh)
        return
    if is_on_device(target):
        from ..torch import _trace

        with no_grad():
            _trace.wrote(target)
            seen = _operand(target)
            seen.copy_(array.to(seen.device).view(seen.dtype).reshape(seen.shape))
        return
    seen = _plain(target, moved=True)[1].numpy()
    np.copyto(seen, array.view(seen.dtype).reshape(seen.shape))
