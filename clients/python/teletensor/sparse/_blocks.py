"""BlockTensor: matrices in the layouts BSR and BSC, and batches of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from .._functions.common import wrap_dim
from ._compressed import CompressedTensor
from ._coo import CooTensor
from ._places import flat_places
from ._tensor import SparseTensor

__all__ = ["BlockTensor", "of_dense", "of_parts"]


class BlockTensor(SparseTensor):
    """A sparse matrix of dense blocks [height, width] in BSR layout: values [nnz, height, width, ...],
    ordered by rows of blocks, with the starts of these rows and the column of each block, as a CSR matrix
    has them of its elements. In BSC layout, rows and columns are exchanged. `blocks` is the matrix of
    blocks, or a batch of them, in the layout CSR or CSC: its values are the blocks."""

    def __init__(self, blocks: CompressedTensor) -> None:
        self._blocks, self._data = blocks, blocks._data
        self.layout = tt.sparse_bsc if blocks._by_column else tt.sparse_bsr
        count = len(blocks._batch)
        tall, wide, height, width, *dense = blocks._shape[count:]
        self._shape = (*blocks._batch, tall * height, wide * width, *dense)

    def _like(self, values: Tensor) -> BlockTensor:
        return BlockTensor(self._blocks._like(values))

    def _moved(self, move: Callable[[Tensor], Tensor]) -> BlockTensor:
        return BlockTensor(self._blocks._moved(move))

    @property
    def _batch(self) -> tuple[int, ...]:
        return self._blocks._batch

    def _parts(self) -> dict[str, Tensor]:
        return self._blocks._parts()

    def _form(self, name: str) -> Callable[..., Any] | None:
        return super()._form(name) if name.removesuffix("_") in _SUPPORTED else None

    def crow_indices(self) -> Tensor:
        """The start [..., rows of blocks + 1] of each row in the values (BSR)."""
        return self._blocks.crow_indices()

    def col_indices(self) -> Tensor:
        """The column [..., nnz] of each block (BSR)."""
        return self._blocks.col_indices()

    def ccol_indices(self) -> Tensor:
        """The start [..., columns of blocks + 1] of each column in the values (BSC)."""
        return self._blocks.ccol_indices()

    def row_indices(self) -> Tensor:
        """The row [..., nnz] of each block (BSC)."""
        return self._blocks.row_indices()

    def values(self) -> Tensor:
        """The blocks [..., nnz, height, width, ...], with their history."""
        return self._data

    def sparse_dim(self) -> int:
        """2: the rows and the columns."""
        return 2

    def to_sparse_coo(self) -> CooTensor:
        """The matrices in COO layout, with every element of the blocks."""
        blocks = self._blocks.to_sparse_coo()
        count, height, width, *dense = blocks._data.shape
        down, right = (tt.arange(n, device=self.device) for n in (height, width))
        *outer, rows, columns = (row.reshape((-1, 1, 1)) for row in blocks._places)
        rows = rows * height + down.reshape((1, -1, 1))
        columns = columns * width + right.reshape((1, 1, -1))
        whole = (count, height, width)
        places = tt.stack([each.expand(whole).reshape(-1) for each in (*outer, rows, columns)])
        values = blocks._data.reshape((math.prod(whole), *dense))
        return CooTensor(places, values, self._shape, False, self._blocks._valid)

    def _at_places(self, dense: Tensor) -> Tensor:
        found = super()._at_places(dense)
        count = len(self._batch) + 3
        return found.reshape((*self._data.shape[:count], *found.shape[1:]))

    def exchanged(self) -> BlockTensor:
        """The transposed matrices: the same parts in the other layout."""
        count = len(self._batch)
        blocks = self._blocks.exchanged()
        return BlockTensor(blocks._like(self._data.transpose(count + 1, count + 2)))

    def of_batch(self, dim: int, index: int) -> BlockTensor:
        """The matrices at one index of a dimension of the batch."""
        return BlockTensor(self._blocks.of_batch(dim, index))

    def transpose(self, dim0: int, dim1: int) -> BlockTensor:
        """The transposed matrices, or the tensor itself if both dimensions are the same."""
        first, second, count = wrap_dim(dim0, self.ndim), wrap_dim(dim1, self.ndim), len(self._batch)
        if first == second:
            return self
        if {first, second} != {count, count + 1}:
            raise RuntimeError(
                f"transpose(): only the dimensions {count} and {count + 1} of these matrices of blocks can "
                f"be exchanged, got {first} and {second}"
            )
        return self.exchanged()

    def t(self) -> BlockTensor:
        """The transposed matrix. RuntimeError for a batch."""
        if self.ndim != 2:
            raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {self.ndim}D")
        return self.exchanged()

    def times(self, dense: Tensor) -> Tensor:
        """The products [..., rows, n] with dense matrices [..., columns, n]: one small product for each
        block."""
        blocks = self._blocks.to_sparse_coo()
        count, height, width = blocks._data.shape
        tall, wide = self._blocks._shape[len(self._batch) :][:2]
        matrices, n = math.prod(self._batch), dense.shape[-1]
        places = blocks._places
        rows = flat_places(places[:-1], (*self._batch, tall), blocks._inside)
        columns = tt.cat([places[:-2], places[-1:]]) if self._batch else places[-1:]
        columns = flat_places(columns, (*self._batch, wide), blocks._inside)
        taken = dense.reshape((matrices * wide, width, n)).index_select(0, columns)
        start = tt.zeros(matrices * tall, height, n, dtype=dense.dtype, device=dense.device)
        total: Tensor = start.index_add(0, rows, tt.bmm(blocks._data, taken))
        return total.reshape((*self._batch, tall * height, n))


# Forms that use values and to_sparse_coo() only.
_SUPPORTED = frozenset(
    """
    mm matmul bmm spmm dsmm mv addmm saddmm linear mul multiply div divide true_divide neg negative sum norm
    any vector_norm abs absolute sin sqrt square tanh relu sign float double half bfloat16 is_same_size
    select getitem sparse_mask
    """.split()
)


def of_dense(x: Tensor, layout: Any, blocksize: Any, dense_dim: int) -> BlockTensor:
    """The blocks of dense matrices [..., rows, columns, ...], the last `dense_dim` dimensions of which
    belong to the elements, that have an element that is not zero. Waits for their number; RuntimeError if
    the matrices of a batch have different numbers."""
    name = "dense_to_sparse_bsr" if layout is tt.sparse_bsr else "dense_to_sparse_bsc"
    count = x.dim() - dense_dim - 2
    if count < 0:
        raise RuntimeError(
            f"{name}: expected a matrix, got {x.dim()} dimensions, {dense_dim} of them dense"
        )
    height, width = _size_of_blocks(name, blocksize)
    *batch, rows, columns = x.shape[: count + 2]
    if rows % height or columns % width:
        raise RuntimeError(
            f"{name}: tensor sparse size ({rows},{columns}) must be divisible by given blocksize "
            f"({height},{width})"
        )
    dense = x.shape[count + 2 :]
    split = x.reshape((*batch, rows // height, height, columns // width, width, *dense))
    blocks = split.transpose(count + 1, count + 2)
    plain = tt.sparse_csc if layout is tt.sparse_bsc else tt.sparse_csr
    return BlockTensor(CompressedTensor.of(tt.Tensor.to_sparse(blocks, count + 2), plain))


def of_parts(
    layout: Any, starts: Tensor, others: Tensor, values: Tensor, shape: tuple[int, ...], valid: bool
) -> CompressedTensor | BlockTensor:
    """The matrices of that shape with these parts, in one of the layouts CSR, CSC, BSR and BSC."""
    if layout in (tt.sparse_csr, tt.sparse_csc):
        return CompressedTensor(layout, starts, others, values, shape, valid)
    plain = tt.sparse_csc if layout is tt.sparse_bsc else tt.sparse_csr
    count = starts.dim() - 1
    height, width, *dense = values.shape[count + 1 :]
    rows, columns = shape[count : count + 2]
    blocks = (*shape[:count], rows // height, columns // width, height, width, *dense)
    return BlockTensor(CompressedTensor(plain, starts, others, values, blocks, valid))


def _size_of_blocks(name: str, blocksize: Any) -> tuple[int, int]:
    if not isinstance(blocksize, (tuple, list)) or len(blocksize) != 2:
        raise RuntimeError(f"{name}: blocksize needs to be a tuple of size 2, got {blocksize!r}")
    height, width = (int(each) for each in blocksize)
    if height < 1 or width < 1:
        raise RuntimeError(f"{name}: blocksize needs to be positive, got {blocksize!r}")
    return height, width
