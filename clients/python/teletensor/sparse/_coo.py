"""CooTensor: values and the indices of each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from ._places import check_inside, flat_places, indices_of_places, picked, placed, summed
from ._tensor import SparseTensor

__all__ = ["CooTensor"]


class CooTensor(SparseTensor):
    """A sparse tensor in COO layout: indices [sparse_dim, nnz] of int64 and values [nnz, ...].

    A place may occur several times until `coalesce`: the element is the sum. `inside` says that all
    indices are known to be in range.
    """

    _distinct = 0  # number of values after the last compact()

    def __init__(
        self,
        indices: Tensor,
        values: Tensor,
        shape: tuple[int, ...],
        coalesced: bool = False,
        inside: bool = False,
    ) -> None:
        self.layout = tt.sparse_coo
        self._places, self._data, self._shape = indices, values, tuple(shape)
        self._coalesced, self._inside = coalesced, inside

    def _like(self, values: Tensor) -> CooTensor:
        return CooTensor(
            self._places, values, (*self._sizes, *values.shape[1:]), self._coalesced, self._inside
        )

    def _gradient(self, found: Tensor) -> CooTensor:
        if self._coalesced:
            return self._like(found)
        # Values at the same place have the same gradient, that of the element.
        with tt.no_grad():
            total = self._like(found).coalesce()
            return total._like(total._data / self._like(tt.ones_like(found)).coalesce()._data)

    def _moved(self, move: Callable[[Tensor], Tensor]) -> CooTensor:
        return CooTensor(move(self._places), move(self._data), self._shape, self._coalesced, self._inside)

    def _parts(self) -> dict[str, Tensor]:
        return {"indices": self._places}

    @property
    def _sizes(self) -> tuple[int, ...]:
        """The sizes of the dimensions that the indices cover."""
        return self._shape[: self.sparse_dim()]

    def sparse_dim(self) -> int:
        """The number of dimensions that the indices cover."""
        return self._places.shape[0]

    def is_coalesced(self) -> bool:
        """Are the places known to be distinct, and sorted?"""
        return self._coalesced

    def _coalesced_(self, coalesced: bool) -> CooTensor:
        """Sets whether the places are taken to be distinct and sorted; returns the tensor."""
        self._coalesced = coalesced
        return self

    def _needs(self, name: str) -> None:
        if not self._coalesced:
            raise RuntimeError(f"Cannot get {name} on an uncoalesced tensor, please call .coalesce() first")

    def indices(self) -> Tensor:
        """The indices [sparse_dim, nnz] of a coalesced tensor."""
        self._needs("indices")
        return self._places

    def values(self) -> Tensor:
        """The values [nnz, ...] of a coalesced tensor, with their history."""
        self._needs("values")
        return self._data

    def _indices(self) -> Tensor:
        """The indices [sparse_dim, nnz], coalesced or not."""
        return self._places

    def coalesce(self) -> CooTensor:
        """The tensor with distinct places in row-major order, or the tensor itself if it is coalesced.
        Waits for the number of places. RuntimeError if an index is out of range."""
        if self._coalesced:
            return self
        sizes = self._sizes
        found, groups = tt.unique(flat_places(self._places, sizes, self._inside), return_inverse=True)
        if not self._inside:
            check_inside(self._places, sizes)
        values = summed(self._data, groups, found.shape[0])
        return CooTensor(indices_of_places(found, sizes), values, self._shape, True, True)

    def compact(self) -> None:
        """Coalesces the tensor in place if it has four times as many values as after the last call. So a
        sum that grows by each addition has a size in proportion to the number of its places."""
        if self._nnz() > 4 * self._distinct:
            self._become(self.coalesce(), "compact")
            self._distinct = self._nnz()

    def to_sparse_coo(self) -> CooTensor:
        """The tensor itself."""
        return self

    def exchanged(self) -> CooTensor:
        """The tensor with its last two sparse dimensions exchanged, in which places may be unordered."""
        at = self.sparse_dim() - 2
        places = tt.cat([self._places[:at], self._places[at:].flip(0)]) if at else self._places.flip(0)
        rows, columns, *dense = self._shape[at:]
        shape = (*self._shape[:at], columns, rows, *dense)
        return CooTensor(places, self._data, shape, False, self._inside)

    def by_column(self) -> CooTensor:
        """`exchanged()`, coalesced."""
        turned = self.exchanged()
        if not self._coalesced:
            return turned.coalesce()
        order = flat_places(turned._places, turned._sizes, True).argsort()
        places, values = turned._places.index_select(1, order), self._data.index_select(0, order)
        return CooTensor(places, values, turned._shape, True, True)

    def _dense(self) -> Tensor:
        return placed(self._data, self._places, self._sizes, self._inside)

    def _at_places(self, dense: Tensor) -> Tensor:
        return picked(dense, self._places, self._sizes, self._inside)

    def _compressed(self, layout: Any, dense_dim: int | None) -> Any:
        from ._compressed import CompressedTensor

        if self.sparse_dim() < 2 or dense_dim not in (None, self.dense_dim()):
            raise RuntimeError(
                f"the layout {layout} needs matrices, got {self.sparse_dim()} sparse "
                f"dimensions and {self.dense_dim()} dense ones"
            )
        return CompressedTensor.of(self, layout)

    def to_sparse_csr(self, dense_dim: int | None = None) -> Any:
        """The matrices of the last two sparse dimensions in CSR layout. RuntimeError if they have
        different numbers of values."""
        return self._compressed(tt.sparse_csr, dense_dim)

    def to_sparse_csc(self, dense_dim: int | None = None) -> Any:
        """The matrices of the last two sparse dimensions in CSC layout. RuntimeError if they have
        different numbers of values."""
        return self._compressed(tt.sparse_csc, dense_dim)
