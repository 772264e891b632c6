"""Creates the tensors of a file on the daemon, on the devices that `map_location` chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _api as tt
from .._files.stored import AsStored, Storage, Stored, StoredSparse, WithoutData
from ..nn.parameter import Buffer, Parameter, UninitializedBuffer, UninitializedParameter
from .arrays import tensor_of, without_data

__all__ = ["InDaemon"]


class Place:
    """A storage as a function for `map_location` sees it: its size, and the device on which it would be
    created. Its methods return the same storage on another device."""

    def __init__(self, nbytes: int, device: Any) -> None:
        self._nbytes = nbytes
        self.device = device

    def nbytes(self) -> int:
        """The storage's size in bytes."""
        return self._nbytes

    def cpu(self) -> Place:
        """The same storage on the CPU."""
        return Place(self._nbytes, tt.device("cpu"))

    def cuda(self, device: int | str | tt.device | None = None) -> Place:
        """The same storage on a GPU."""
        return Place(self._nbytes, tt.device(f"cuda:{device or 0}" if device is None or isinstance(
            device, int) else device))


class InDaemon(AsStored):
    """Creates the tensors of a file on the daemon: one block of memory for each storage, which all its
    tensors share."""

    def __init__(self, map_location: Any = None) -> None:
        self._map_location = map_location
        self._flat: dict[Storage, Any] = {}

    def tensor(self, stored: Stored, requires_grad: bool) -> Any:
        """A tensor that uses the memory of its storage and is not a view of another tensor."""
        flat = self._flat.get(stored.storage)
        if flat is None:
            flat = tensor_of(stored.dtype, stored.storage.elements(stored.dtype),
                               self._device(stored.storage))
            self._flat[stored.storage] = flat
        dtype = getattr(tt, stored.dtype)
        flat = flat if flat.dtype == dtype else flat.view(dtype)
        made = flat.as_strided(stored.shape, stored.stride, stored.offset).detach()
        made = made.conj() if stored.conj else made
        made = -made if stored.neg else made
        return made.requires_grad_() if requires_grad else made

    def without_data(self, described: WithoutData, requires_grad: bool) -> Any:
        """A tensor on the device meta, which map_location does not move."""
        made = without_data(described.dtype, described.shape, described.stride)
        return made.requires_grad_() if requires_grad else made

    def sparse(self, described: StoredSparse) -> Any:
        """A sparse tensor, whose indices are checked unless it is on the device meta."""
        from ..sparse import _make

        parts = (*described.indices, described.values, described.shape)
        check = not described.values.is_meta
        if described.layout == "sparse_coo":
            return _make.sparse_coo_tensor(
                *parts, check_invariants=check, is_coalesced=described.coalesced)
        layouts = (tt.sparse_csr, tt.sparse_csc, tt.sparse_bsr, tt.sparse_bsc)
        layout = {repr(each).rpartition(".")[2]: each for each in layouts}[described.layout]
        return _make.sparse_compressed_tensor(*parts, layout=layout, check_invariants=check)

    def parameter(self, tensor: Any, requires_grad: bool) -> Any:
        """A parameter that uses the memory of the tensor."""
        return Parameter(tensor, requires_grad)

    def buffer(self, tensor: Any, persistent: bool) -> Any:
        """A buffer that uses the memory of the tensor."""
        return Buffer(tensor, requires_grad=tensor.requires_grad, persistent=persistent)

    def uninitialized(self, kind: str, requires_grad: bool) -> Any:
        """A parameter or buffer on the default device whose shape is not known yet."""
        return (UninitializedParameter if kind == "UninitializedParameter" else UninitializedBuffer)(
            requires_grad)

    def attribute(self, tensor: Any, name: str, value: Any) -> None:
        """Sets the attribute."""
        setattr(tensor, name, value)

    def _device(self, storage: Storage) -> Any:
        """The device that map_location chooses; None means the default device."""
        wanted, location = self._map_location, storage.location
        if isinstance(wanted, Mapping):
            return wanted.get(location, location)
        if not callable(wanted):
            return wanted
        given = wanted(Place(storage.nbytes, tt.device("cpu")), location)
        return given.device if isinstance(given, Place) else given
