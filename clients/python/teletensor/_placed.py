"""Tensors in the daemon of what a file holds, and where `map_location` puts them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _api as tt
from ._arrays import tensor_of
from ._stored import AsStored, Storage, Stored
from .nn.parameter import Parameter

__all__ = ["InDaemon"]


class Place:
    """A storage as a function for `map_location` sees it: its size, and the device where it would go. Its
    methods give the same at another device."""

    def __init__(self, nbytes: int, device: Any) -> None:
        self._nbytes = nbytes
        self.device = device

    def nbytes(self) -> int:
        """The storage's size in bytes."""
        return self._nbytes

    def cpu(self) -> Place:
        """The same on the CPU."""
        return Place(self._nbytes, tt.device("cpu"))

    def cuda(self, device: int | str | tt.device | None = None) -> Place:
        """The same on a GPU."""
        return Place(self._nbytes, tt.device(f"cuda:{device or 0}" if device is None or isinstance(
            device, int) else device))


class InDaemon(AsStored):
    """Makes the tensors of a file in the daemon: one memory for each storage, whoever shares it."""

    def __init__(self, map_location: Any = None) -> None:
        self._map_location = map_location
        self._flat: dict[Storage, Any] = {}

    def tensor(self, stored: Stored, requires_grad: bool) -> Any:
        """A tensor on the memory of its storage, which is a view of none."""
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

    def parameter(self, tensor: Any, requires_grad: bool) -> Any:
        """A parameter on the tensor's memory."""
        return Parameter(tensor, requires_grad)

    def _device(self, storage: Storage) -> Any:
        """The device that map_location says; None: the default device."""
        wanted, location = self._map_location, storage.location
        if isinstance(wanted, Mapping):
            return wanted.get(location, location)
        if not callable(wanted):
            return wanted
        given = wanted(Place(storage.nbytes, tt.device("cpu")), location)
        return given.device if isinstance(given, Place) else given
