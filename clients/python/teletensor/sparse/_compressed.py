"""CompressedTensor: matrices in the layouts CSR and CSC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from ._coo import CooTensor
from ._places import summed
from ._tensor import SparseTensor

__all__ = ["CompressedTensor"]


class CompressedTensor(SparseTensor):
    """A sparse matrix in CSR layout: values [nnz, ...] ordered by row, their columns [nnz], and the start
    [rows + 1] of each row in them. In CSC layout, rows and columns are exchanged. `valid` says that the
    index tensors are known to be right."""

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
    def of(cls, matrix: CooTensor, layout: Any) -> CompressedTensor:
        """The COO matrix in that layout."""
        by_column = layout is tt.sparse_csc
        source = matrix.transpose(0, 1) if by_column else matrix
        coalesced = source.coalesce()
        lines, others = coalesced._places
        ends = summed(tt.ones_like(lines), lines + 1, coalesced._shape[0] + 1)
        return cls(layout, ends.cumsum(0), others, coalesced._data, matrix._shape, True)

    def _like(self, values: Tensor) -> CompressedTensor:
        return CompressedTensor(
            self.layout,
            self._starts,
            self._others,
            values,
            (*self._shape[:2], *values.shape[1:]),
            self._valid,
        )

    def _moved(self, move: Callable[[Tensor], Tensor]) -> CompressedTensor:
        return CompressedTensor(
            self.layout, move(self._starts), move(self._others), move(self._data), self._shape, self._valid
        )

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
        """The start [rows + 1] of each row in the values (CSR)."""
        return self._part("crow_indices")

    def col_indices(self) -> Tensor:
        """The column [nnz] of each value (CSR)."""
        return self._part("col_indices")

    def ccol_indices(self) -> Tensor:
        """The start [columns + 1] of each column in the values (CSC)."""
        return self._part("ccol_indices")

    def row_indices(self) -> Tensor:
        """The row [nnz] of each value (CSC)."""
        return self._part("row_indices")

    def values(self) -> Tensor:
        """The values [nnz, ...], with their history."""
        return self._data

    def sparse_dim(self) -> int:
        """2: the rows and the columns."""
        return 2

    def _lines(self) -> Tensor:
        """The row [nnz] of each value (the column in CSC). If the starts are not ascending from 0 to nnz, a
        number that is out of range."""
        count = self._nnz()
        starts = self._starts.to(tt.int64)
        inner = starts[1:-1]
        marks = tt.zeros(count + 1, dtype=tt.int64, device=self.device)
        lines: Tensor = marks.index_add(0, inner, tt.ones_like(inner))[:count].cumsum(0)
        if self._valid:
            return lines
        wrong = (starts[0] != 0) | (starts[-1] != count) | (starts[1:] < starts[:-1]).any()
        outside: Tensor = tt.where(wrong, starts.shape[0] - 1, lines)
        return outside

    def to_sparse_coo(self) -> CooTensor:
        """The matrix in COO layout."""
        lines, others = self._lines(), self._others.to(tt.int64)
        rows = (others, lines) if self._by_column else (lines, others)
        sorted_ = self._valid and not self._by_column
        return CooTensor(tt.stack(rows), self._data, self._shape, sorted_, self._valid)

    def to_sparse_csr(self, dense_dim: int | None = None) -> CompressedTensor:
        """The matrix in CSR layout."""
        return self if not self._by_column else self.to_sparse_coo().to_sparse_csr(dense_dim)

    def to_sparse_csc(self, dense_dim: int | None = None) -> CompressedTensor:
        """The matrix in CSC layout."""
        return self if self._by_column else self.to_sparse_coo().to_sparse_csc(dense_dim)

    def exchanged(self) -> CompressedTensor:
        """The transposed matrix: the same parts in the other layout."""
        rows, columns, *rest = self._shape
        layout = tt.sparse_csr if self._by_column else tt.sparse_csc
        return CompressedTensor(
            layout, self._starts, self._others, self._data, (columns, rows, *rest), self._valid
        )
