"""Descriptions of tensors in files, and helpers that the readers of the file formats share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core
from .._tensors.arrays import DTYPES

__all__ = ["MAX_RANK", "AsStored", "Damaged", "Storage", "Stored", "StoredSparse", "Uninitialized",
           "WithoutData", "is_count", "made_sparse", "read_at", "row_major"]

MAX_RANK = 12
_MOST_WITHOUT_DATA = 1 << 50  # elements of a tensor that has no storage


class Damaged(Exception):
    """A fault of a file; `load` converts it to a ValueError that names the file."""


@dataclass(frozen=True, eq=False)
class Storage:
    """Bytes in a file that contain the elements of one tensor, or of several tensors that share them."""

    nbytes: int
    location: str  # where the tensors were when they were saved: "cpu", "cuda:0"
    read: Callable[[], bytearray]  # reads the bytes; more bytes may follow them
    dtype: str
    swapped: bool = False  # whether the bytes are big-endian

    def elements(self, dtype: str) -> np.ndarray[Any, Any]:
        """All elements, in NumPy's form of the dtype (`DTYPES`)."""
        numpy = DTYPES[dtype]
        flat: np.ndarray[Any, Any] = np.frombuffer(self.read(), numpy, self.nbytes // numpy.itemsize)
        if dtype == "bool":
            flat = flat.view("u1") != 0
        return flat.byteswap() if self.swapped else flat


def _span(shape: Sequence[int], stride: Sequence[int]) -> int:
    """The number of elements from the first to the last one in memory, inclusively."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor in a file: elements of a storage with an offset and strides, all in units of elements."""

    storage: Storage
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    conj: bool = False  # the values are the conjugates of those elements
    neg: bool = False  # the values are the negatives of those elements

    def __post_init__(self) -> None:
        """Raises Damaged unless all elements are in the storage."""
        for what, numbers in (("shape", self.shape), ("stride", self.stride)):
            if len(numbers) > MAX_RANK or not all(map(is_count, numbers)):
                told = ", ".join(str(n) if type(n) is int else type(n).__name__ for n in numbers[:20])
                raise Damaged(f"a tensor has the {what} ({told[:200]})")
        if len(self.shape) != len(self.stride) or not is_count(self.offset):
            raise Damaged(f"a tensor of shape {self.shape} has the strides {self.stride} and the "
                          f"storage offset {str(self.offset)[:100]}")
        size = DTYPES[self.dtype].itemsize
        if self._end() * size > self.storage.nbytes:
            raise Damaged(f"a tensor of {self.dtype}, shape {self.shape}, strides {self.stride} and offset "
                          f"{self.offset} ends after the {self.storage.nbytes} bytes of its storage")

    def _end(self) -> int:
        """The index after the last element; the offset itself may be anywhere in the storage."""
        return self.offset + _span(self.shape, self.stride)

    def array(self) -> np.ndarray[Any, Any]:
        """The values in row-major order, in NumPy's form of the dtype."""
        flat = self.storage.elements(self.dtype)
        steps = [step * flat.itemsize for step in self.stride]
        array = np.lib.stride_tricks.as_strided(flat[self.offset:], self.shape, steps)
        array = array.conj() if self.conj else array
        return np.asarray(-array if self.neg else array, order="C")

    @property
    def differentiable(self) -> bool:
        """Whether the tensor may require grad."""
        return "float" in self.dtype or "complex" in self.dtype

    @property
    def repeats(self) -> bool:
        """Whether the tensor has more elements than its storage."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize > self.storage.nbytes


@dataclass(frozen=True, eq=False)
class WithoutData:
    """A tensor of the device meta in a file, which has no storage there."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises Damaged unless there can be such a tensor."""
        numbers = (*self.shape, *self.stride)
        good = len(self.shape) == len(self.stride) <= MAX_RANK and all(map(is_count, numbers))
        if not good or max(math.prod(self.shape), _span(self.shape, self.stride)) > _MOST_WITHOUT_DATA:
            raise Damaged("a tensor of the device meta has a shape or strides that no tensor can have")

    @property
    def differentiable(self) -> bool:
        """Whether the tensor may require grad."""
        return "float" in self.dtype or "complex" in self.dtype


@dataclass(frozen=True, eq=False)
class StoredSparse:
    """A sparse tensor in a file: the name of its layout, the tensors of its indices and of its values, as
    descriptions or created. Whether the indices are in range is known only when they are read."""

    layout: str
    indices: list[Any]
    values: Any
    shape: list[int]
    coalesced: bool

    def __post_init__(self) -> None:
        """Raises Damaged unless the parts are as many as the layout has and of the right kind."""
        number = _INDICES.get(self.layout) if isinstance(self.layout, str) else None
        parts = [*self.indices, self.values] if type(self.indices) is list else []
        if number is None or len(parts) != number + 1 or not all(map(_is_tensor, parts)):
            raise Damaged("it holds a sparse tensor whose parts are damaged")
        shape = self.shape
        if type(shape) is not list or len(shape) > MAX_RANK or not all(map(is_count, shape)):
            raise Damaged("it holds a sparse tensor whose shape is damaged")
        if type(self.coalesced) is not bool:
            raise Damaged("it holds a sparse tensor whose flag of coalesced indices is damaged")
        # Reading the indices must take no more memory than the file has.
        if any(isinstance(part, Stored) and part.repeats for part in self.indices):
            raise Damaged("it holds a sparse tensor whose indices have more elements than their storage")


# The number of index tensors of each layout.
_INDICES = {"sparse_coo": 1, "sparse_csr": 2, "sparse_csc": 2, "sparse_bsr": 2, "sparse_bsc": 2}


def _is_tensor(part: Any) -> bool:
    return isinstance(part, (Stored, WithoutData, _core.Tensor))


class Uninitialized:
    """A parameter or buffer in a file whose shape is not known yet."""


class AsStored:
    """Creates no tensors: returns the descriptions that a reader finds unchanged."""

    def tensor(self, stored: Stored, requires_grad: bool) -> Any:
        """The tensor for a description."""
        return self.parameter(stored, requires_grad)

    def without_data(self, described: WithoutData, requires_grad: bool) -> Any:
        """The tensor of the device meta for a description."""
        return self.parameter(described, requires_grad)

    def sparse(self, described: StoredSparse) -> Any:
        """The sparse tensor for a description, whose tensors `tensor` has created. RuntimeError, TypeError
        or ValueError if there can be no such tensor."""
        return described

    def parameter(self, tensor: Any, requires_grad: bool) -> Any:
        """The parameter that uses the memory of a tensor that `tensor` has created. Raises Damaged if it
        cannot require grad."""
        if requires_grad and not tensor.differentiable:
            raise Damaged(f"its pickle has a tensor of {tensor.dtype} that requires grad")
        return tensor

    def buffer(self, tensor: Any, persistent: bool) -> Any:
        """The nn.Buffer that uses the memory of a tensor that `tensor` has created."""
        return tensor

    def uninitialized(self, kind: str, requires_grad: bool) -> Any:
        """The nn.UninitializedParameter or nn.UninitializedBuffer (`kind`), which has no elements."""
        return Uninitialized()

    def attribute(self, tensor: Any, name: str, value: Any) -> None:
        """Sets an attribute of a tensor, parameter or buffer that this object has created."""


def made_sparse(maker: AsStored, *parts: Any) -> Any:
    """The sparse tensor that `maker` creates of the parts of a StoredSparse. Raises Damaged if there can be
    no such tensor."""
    try:
        return maker.sparse(StoredSparse(*parts))
    except (RuntimeError, TypeError, ValueError) as error:
        raise Damaged(f"it holds a sparse tensor whose parts do not fit: {error}") from None


def is_count(value: Any) -> bool:
    """Returns whether the value is a non-negative int that fits 63 bits."""
    return type(value) is int and 0 <= value < 2**63


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a row-major tensor without gaps."""
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))


def read_at(file: Any, at: int, count: int, what: str) -> bytearray:
    """Reads `count` bytes at `at`. Raises Damaged, naming `what`, if the file ends earlier."""
    file.seek(at)
    raw = bytearray(count)
    view = memoryview(raw)
    got = 0
    while got < count:
        part = file.readinto(view[got:])
        if not part:
            raise Damaged(f"{what} is cut short")
        got += part
    return raw
