"""BlockTensor: matrices in the layouts BSR and BSC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from ._compressed import CompressedTensor
from ._coo import CooTensor
from ._places import summed
from ._tensor import SparseTensor

__all__ = ["BlockTensor", "of_dense"]


class BlockTensor(SparseTensor):
    """A sparse matrix of dense blocks [height, width] in BSR layout: values [nnz, height, width], ordered
    by rows of blocks, with the starts of these rows and the column of each block, as a CSR matrix has them
    of its elements. In BSC layout, rows and columns are exchanged."""

    def __init__(self, places: CompressedTensor, values: Tensor, layout: Any) -> None:
        self._blocks = places  # the matrix of blocks: a CSR or CSC matrix, whose values are not used
        self._data, self.layout = values, layout
        self._shape = tuple(n * size for n, size in zip(places._shape, values.shape[1:], strict=True))

    def _like(self, values: Tensor) -> BlockTensor:
        return BlockTensor(self._blocks, values, self.layout)

    def _moved(self, move: Callable[[Tensor], Tensor]) -> BlockTensor:
        return BlockTensor(self._blocks._moved(move), move(self._data), self.layout)

    def _parts(self) -> dict[str, Tensor]:
        return self._blocks._parts()

    def _form(self, name: str) -> Callable[..., Any] | None:
        return super()._form(name) if name.removesuffix("_") in _SUPPORTED else None

    def crow_indices(self) -> Tensor:
        """The start [rows of blocks + 1] of each row in the values (BSR)."""
        return self._blocks.crow_indices()

    def col_indices(self) -> Tensor:
        """The column [nnz] of each block (BSR)."""
        return self._blocks.col_indices()

    def ccol_indices(self) -> Tensor:
        """The start [columns of blocks + 1] of each column in the values (BSC)."""
        return self._blocks.ccol_indices()

    def row_indices(self) -> Tensor:
        """The row [nnz] of each block (BSC)."""
        return self._blocks.row_indices()

    def values(self) -> Tensor:
        """The blocks [nnz, height, width], with their history."""
        return self._data

    def sparse_dim(self) -> int:
        """2: the rows and the columns."""
        return 2

    def to_sparse_coo(self) -> CooTensor:
        """The matrix in COO layout, with every element of the blocks."""
        at = self._blocks.to_sparse_coo()._places
        count, height, width = self._data.shape
        down, right = (tt.arange(n, device=self.device) for n in (height, width))
        rows = (at[0] * height).reshape((-1, 1, 1)) + down.reshape((1, -1, 1))
        columns = (at[1] * width).reshape((-1, 1, 1)) + right.reshape((1, 1, -1))
        whole = (count, height, width)
        places = tt.stack([each.expand(whole).reshape(-1) for each in (rows, columns)])
        return CooTensor(places, self._data.reshape(-1), self._shape, False, self._blocks._valid)

    def _at_places(self, dense: Tensor) -> Tensor:
        return super()._at_places(dense).reshape(self._data.shape)

    def exchanged(self) -> BlockTensor:
        """The transposed matrix: the same parts in the other layout."""
        layout = tt.sparse_bsr if self.layout is tt.sparse_bsc else tt.sparse_bsc
        return BlockTensor(self._blocks.exchanged(), self._data.transpose(1, 2), layout)

    def transpose(self, dim0: int, dim1: int) -> BlockTensor:
        """The transposed matrix, or the matrix itself if both dimensions are the same."""
        for each in (dim0, dim1):
            if not -2 <= each < 2:
                raise IndexError(
                    f"Dimension out of range (expected to be in range of [-2, 1], but got {each})"
                )
        return self if dim0 % 2 == dim1 % 2 else self.exchanged()

    def t(self) -> BlockTensor:
        """The transposed matrix."""
        return self.exchanged()

    def times(self, dense: Tensor) -> Tensor:
        """The product [rows, n] with a dense matrix [columns, n]: one small product for each block."""
        _, height, width = self._data.shape
        rows, columns = self._blocks.to_sparse_coo()._places
        tall, wide = self._blocks._shape
        taken = dense.reshape((wide, width, dense.shape[1])).index_select(0, columns)
        start = tt.zeros(tall, height, dense.shape[1], dtype=dense.dtype, device=dense.device)
        total: Tensor = start.index_add(0, rows, tt.bmm(self._data, taken))
        return total.reshape((self._shape[0], dense.shape[1]))


# Forms that use values and to_sparse_coo() only.
_SUPPORTED = frozenset(
    """
    mm matmul spmm dsmm mv addmm saddmm linear mul multiply div divide true_divide neg negative sum norm any
    vector_norm abs absolute sin sqrt square tanh relu sign float double half bfloat16 is_same_size
    """.split()
)


def of_dense(x: Tensor, layout: Any, blocksize: Any) -> BlockTensor:
    """The blocks of a dense matrix that have an element that is not zero. Waits for their number."""
    name = "dense_to_sparse_bsr" if layout is tt.sparse_bsr else "dense_to_sparse_bsc"
    if x.dim() != 2:
        raise NotImplementedError(f"{name}: only matrices are supported, got {x.dim()} dimensions")
    height, width = _size_of_blocks(name, blocksize)
    if x.shape[0] % height or x.shape[1] % width:
        raise RuntimeError(
            f"{name}: tensor sparse size ({x.shape[0]},{x.shape[1]}) must be divisible by given blocksize "
            f"({height},{width})"
        )
    tall, wide = x.shape[0] // height, x.shape[1] // width
    blocks = x.reshape((tall, height, wide, width)).permute((0, 2, 1, 3))
    given = (blocks.detach() != 0).flatten(2).any(-1)
    by_column = layout is tt.sparse_bsc
    lines, others = (given.t() if by_column else given).nonzero().t()
    ends = summed(tt.ones_like(lines), lines + 1, (wide if by_column else tall) + 1)
    values = blocks[(others, lines) if by_column else (lines, others)]
    return of_parts(layout, ends.cumsum(0), others, values, (tall, wide), True)


def of_parts(
    layout: Any, starts: Tensor, others: Tensor, values: Tensor, blocks: tuple[int, int], valid: bool
) -> BlockTensor:
    """The matrix of `blocks` (rows, columns) blocks with these parts."""
    plain = tt.sparse_csc if layout is tt.sparse_bsc else tt.sparse_csr
    unused = values.detach()[:, 0, 0]
    return BlockTensor(CompressedTensor(plain, starts, others, unused, blocks, valid), values, layout)


def _size_of_blocks(name: str, blocksize: Any) -> tuple[int, int]:
    if not isinstance(blocksize, (tuple, list)) or len(blocksize) != 2:
        raise RuntimeError(f"{name}: blocksize needs to be a tuple of size 2, got {blocksize!r}")
    height, width = (int(each) for each in blocksize)
    if height < 1 or width < 1:
        raise RuntimeError(f"{name}: blocksize needs to be positive, got {blocksize!r}")
    return height, width
