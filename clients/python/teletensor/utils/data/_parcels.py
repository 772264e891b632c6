"""The messages between a DataLoader and its worker processes: pickles, in which tensors are host arrays.

Pickles are sent only between a program and processes that it has started, over its own pipes; data from a
file or from a daemon are never unpickled. With cloudpickle, classes and functions that other processes
cannot import (because they are defined in a notebook, a script or a function) are sent as code.
"""

from __future__ import annotations

import collections
import copyreg
import functools
import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from ... import _api as tt
from ..._tensors.arrays import tensor_of
from ..._tensors.pickling import by_value
from ..._tensors.tensor import Tensor

__all__ = ["HostTensor", "Parcel", "loads", "write"]


class HostTensor:
    """A tensor in a message, which becomes a tensor in the process that receives the batch."""

    def __init__(self, dtype: str, array: np.ndarray[Any, Any]) -> None:
        if not isinstance(getattr(tt, dtype, None), tt.dtype):
            raise TypeError(f"tensor: NumPy dtype {dtype} has no counterpart here")
        self._parts = dtype, array

    def __reduce__(self) -> Any:
        return tensor_of, self._parts


def write(value: Any, file: io.BytesIO, by_value: bool = True) -> None:
    """Appends the pickle of `value`. by_value: classes and functions that cannot be imported are pickled as
    code if cloudpickle is installed. Raises the errors of objects that cannot be pickled."""
    _pickler_type(by_value)(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)


loads = pickle.loads


class Parcel:
    """A value for a worker: it is pickled when the worker's process starts, and unpickled when the worker
    opens it. A worker that is forked from the program has the value itself."""

    def __init__(self, value: Any, packed: bytes | None = None) -> None:
        self._value, self._packed = value, packed

    def __reduce__(self) -> Any:
        file = io.BytesIO()
        try:
            write(self._value, file)
        except Exception as error:
            raise TypeError(
                "DataLoader: the dataset, collate_fn or worker_init_fn cannot be sent to worker processes: "
                f"{type(error).__name__}: {error}. {_cure()}"
            ) from error
        return Parcel, (None, file.getvalue())

    def open(self) -> Any:
        """Returns the value."""
        return self._value if self._packed is None else loads(self._packed)


def _cure() -> str:
    forked = (
        'num_workers=0 sends nothing, nor does multiprocessing_context="fork", whose workers make no '
        "tensors"
    )
    if _cloudpickle() is not None:
        return forked
    return (
        "Classes and functions of a notebook, of a script or of a function need the package cloudpickle "
        f"(pip install cloudpickle), or a module to be imported from; {forked}"
    )


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle


@functools.cache
def _pickler_type(by_value: bool) -> Any:
    cloudpickle = _cloudpickle() if by_value else None
    base: Any = pickle.Pickler if cloudpickle is None else cloudpickle.Pickler

    class Pickler(base):  # type: ignore[misc]
        """Pickles tensors as arrays, synchronized objects of multiprocessing, and PyTorch's tensors by
        value."""

        @property
        def dispatch_table(self) -> Any:
            own = copyreg.dispatch_table if cloudpickle is None else base.dispatch_table
            return collections.ChainMap({}, own, _of_multiprocessing())

        def reducer_override(self, obj: Any) -> Any:
            reduced = _reduced(obj)
            if reduced is NotImplemented and cloudpickle is not None:
                return super().reducer_override(obj)
            return reduced

    return Pickler


def _of_multiprocessing() -> dict[Any, Any]:
    """How connections, shared numbers and similar objects are pickled. (PyTorch's entries, which share
    memory only while the sender lives, are left out.)"""
    table = ForkingPickler(io.BytesIO()).dispatch_table
    return {kind: how for kind, how in table.items() if not kind.__module__.startswith("torch")}


def _reduced(obj: Any) -> Any:
    if isinstance(obj, Tensor):
        return by_value(obj, obj.requires_grad and obj.is_leaf)
    return NotImplemented
