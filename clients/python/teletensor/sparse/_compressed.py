"""CompressedTensor: matrices in the layouts CSR and CSC, and batches of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from ._coo import CooTensor
from ._places import flat_places, indices_of_places, summed
from ._tensor import SparseTensor

__all__ = ["CompressedTensor"]


class CompressedTensor(SparseTensor):
    """A sparse matrix in CSR layout: values [nnz, ...] ordered by row, their columns [nnz], and the start
    [rows + 1] of each row in them. In CSC layout, rows and columns are exchanged. In a batch of matrices,
    which have the same number of values, all three begin with the sizes of the batch, and so does the
    shape. `valid` says that the index tensors are known to be right."""

    def __init__(
        self,
        layout: Any,
        starts: Tensor,
        others: Tensor,
        values: Tensor,
        shape: tuple[int, ...],
        valid: bool = False,
    ) -> None:
        self.layout = layout
        self._starts, self._others, self._data, self._shape = starts, others, values, tuple(shape)
        self._valid = valid

    @classmethod
    def of(cls, coo: CooTensor, layout: Any) -> CompressedTensor:
        """The COO tensor in that layout: its last two sparse dimensions are those of the matrices. Waits
        for the number of values; RuntimeError if the matrices of a batch have different numbers."""
        source = coo.by_column() if layout is tt.sparse_csc else coo.coalesce()
        *batch, lines, _ = source._sizes
        matrices = math.prod(batch)
        if matrices == 0:
            raise RuntimeError(f"{layout}: expected the product of batch dimensions to be non-zero")
        others, values = source._places[-1], source._data
        groups = flat_places(source._places[:-1], (*batch, lines + 1), True) + 1
        counts = summed(tt.ones_like(others), groups, matrices * (lines + 1))
        starts = counts.reshape((*batch, lines + 1)).cumsum(-1)
        if batch:
            number = values.shape[0] // matrices
            if bool((starts[..., -1] != number).any()) or number * matrices != values.shape[0]:
                raise RuntimeError("Expect the same number of specified elements per batch.")
            others = others.reshape((*batch, number))
            values = values.reshape((*batch, number, *values.shape[1:]))
        return cls(layout, starts, others, values, coo._shape, True)

    def _like(self, values: Tensor) -> CompressedTensor:
        count = len(self._batch)
        shape = (*self._shape[: count + 2], *values.shape[count + 1 :])
        return CompressedTensor(self.layout, self._starts, self._others, values, shape, self._valid)

    def _moved(self, move: Callable[[Tensor], Tensor]) -> CompressedTensor:
        return CompressedTensor(
            self.layout, move(self._starts), move(self._others), move(self._data), self._shape, self._valid
        )

    @property
    def _batch(self) -> tuple[int, ...]:
        return self._shape[: self._starts.dim() - 1]

    @property
    def _by_column(self) -> bool:
        return self.layout is tt.sparse_csc

    def _parts(self) -> dict[str, Tensor]:
        names = ("ccol_indices", "row_indices") if self._by_column else ("crow_indices", "col_indices")
        return dict(zip(names, (self._starts, self._others), strict=True))

    def _part(self, name: str) -> Tensor:
        found = self._parts().get(name)
        if found is None:
            wanted = "column" if name in ("ccol_indices", "row_indices") else "row"
            raise RuntimeError(
                f"{name} expected sparse {wanted} compressed tensor layout but got {self.layout}"
            )
        return found

    def crow_indices(self) -> Tensor:
        """The start [..., rows + 1] of each row in the values (CSR)."""
        return self._part("crow_indices")

    def col_indices(self) -> Tensor:
        """The column [..., nnz] of each value (CSR)."""
        return self._part("col_indices")

    def ccol_indices(self) -> Tensor:
        """The start [..., columns + 1] of each column in the values (CSC)."""
        return self._part("ccol_indices")

    def row_indices(self) -> Tensor:
        """The row [..., nnz] of each value (CSC)."""
        return self._part("row_indices")

    def values(self) -> Tensor:
        """The values [..., nnz, ...], with their history."""
        return self._data

    def sparse_dim(self) -> int:
        """2: the rows and the columns."""
        return 2

    def _lines(self) -> Tensor:
        """The row [matrices, nnz] of each value (the column in CSC). If the starts of a matrix are not
        ascending from 0 to nnz, a number that is out of range."""
        count, matrices = self._nnz(), math.prod(self._batch)
        starts = self._starts.to(tt.int64).reshape((matrices, self._starts.shape[-1]))
        inner = starts[:, 1:-1]
        marks = tt.zeros(matrices, count + 1, dtype=tt.int64, device=self.device)
        lines: Tensor = marks.scatter_add(1, inner, tt.ones_like(inner))[:, :count].cumsum(1)
        if self._valid:
            return lines
        ends = (starts[:, 0] != 0) | (starts[:, -1] != count)
        wrong = ends | (starts[:, 1:] < starts[:, :-1]).any(1)
        outside: Tensor = tt.where(wrong.unsqueeze(1), starts.shape[1] - 1, lines)
        return outside

    def to_sparse_coo(self) -> CooTensor:
        """The tensor in COO layout, in which the dimensions of a batch are sparse, too."""
        batch, count = self._batch, self._nnz()
        lines, others = self._lines().reshape(-1), self._others.to(tt.int64).reshape(-1)
        rows = [others, lines] if self._by_column else [lines, others]
        values = self._data
        if batch:
            matrices = math.prod(batch)
            numbers = tt.arange(matrices, device=self.device).repeat_interleave(count)
            rows = [*indices_of_places(numbers, batch), *rows]
            values = values.reshape((matrices * count, *values.shape[len(batch) + 1 :]))
        sorted_ = self._valid and not self._by_column
        return CooTensor(tt.stack(rows), values, self._shape, sorted_, self._valid)

    def _at_places(self, dense: Tensor) -> Tensor:
        found = super()._at_places(dense)
        return found.reshape((*self._batch, self._nnz(), *found.shape[1:])) if self._batch else found

    def to_sparse_csr(self, dense_dim: int | None = None) -> CompressedTensor:
        """The matrices in CSR layout."""
        return self if not self._by_column else self.to_sparse_coo().to_sparse_csr(dense_dim)

    def to_sparse_csc(self, dense_dim: int | None = None) -> CompressedTensor:
        """The matrices in CSC layout."""
        return self if self._by_column else self.to_sparse_coo().to_sparse_csc(dense_dim)

    def exchanged(self) -> CompressedTensor:
        """The transposed matrices: the same parts in the other layout."""
        count = len(self._batch)
        rows, columns, *dense = self._shape[count:]
        layout = tt.sparse_csr if self._by_column else tt.sparse_csc
        shape = (*self._batch, columns, rows, *dense)
        return CompressedTensor(layout, self._starts, self._others, self._data, shape, self._valid)

    def of_batch(self, dim: int, index: int) -> CompressedTensor:
        """The matrices at one index of a dimension of the batch."""
        starts, others, values = (x.select(dim, index) for x in (self._starts, self._others, self._data))
        shape = (*self._shape[:dim], *self._shape[dim + 1 :])
        return CompressedTensor(self.layout, starts, others, values, shape, self._valid)
