"""Methods of dense tensors that make sparse ones, or that only sparse ones have."""

from __future__ import annotations

from typing import Any

from .. import _api as tt, _core
from .._core import Tensor
from ._arrange import sparse_mask
from ._blocks import of_dense
from ._coo import CooTensor
from ._products import smm, sspaddmm

__all__ = ["attach"]


def to_sparse(
    self: Tensor,
    sparse_dim: int | None = None,
    *,
    layout: Any = None,
    blocksize: Any = None,
    dense_dim: int | None = None,
) -> Any:
    """The tensor as a sparse one (COO unless a layout is given) with the elements that are not zero.
    `sparse_dim` leading dimensions get indices, the others stay dense. Dimensions before those of a matrix
    are a batch in the layouts CSR, CSC, BSR and BSC; RuntimeError if its matrices have different numbers of
    values. Reading the number of values waits."""
    rank = self.dim()
    count = (
        rank - dense_dim
        if sparse_dim is None and dense_dim is not None
        else (rank if sparse_dim is None else sparse_dim)
    )
    if not 0 <= count <= rank or (count == 0 and rank):
        raise RuntimeError(f"sparse_dim argument must be in >=1 and <={rank}, but got {count}")
    if layout in (tt.sparse_bsr, tt.sparse_bsc):
        return of_dense(self, layout, blocksize, dense_dim or 0)
    if layout in (tt.sparse_csr, tt.sparse_csc):
        if rank - (dense_dim or 0) < 2:
            raise RuntimeError(
                f"to_sparse: the layout {layout} needs a matrix, got {rank} dimensions"
                + (f" of which {dense_dim} are dense" if dense_dim else "")
            )
        return to_sparse(self, rank - (dense_dim or 0)).to_sparse(layout=layout)
    if layout not in (None, tt.sparse_coo):
        raise NotImplementedError(
            f"to_sparse: the layout {layout} is not supported; there are sparse_coo, sparse_csr, "
            "sparse_csc, sparse_bsr and sparse_bsc"
        )
    if rank == 0:
        places = tt.zeros(0, int(bool(self != 0)), dtype=tt.int64, device=self.device)
        return CooTensor(places, self.reshape(1)[: places.shape[1]], (), True, True)
    given = self.detach() != 0
    given = given if count == rank else given.flatten(count).any(-1)
    places = given.nonzero().t()
    return CooTensor(places, self[tuple(places)], tuple(self.shape), True, True)


def to_sparse_coo(self: Tensor) -> Any:
    """The tensor in COO layout."""
    return to_sparse(self)


def to_sparse_csr(self: Tensor, dense_dim: int | None = None) -> Any:
    """The matrix, or a batch of them, in CSR layout."""
    return to_sparse(self, layout=tt.sparse_csr, dense_dim=dense_dim)


def to_sparse_csc(self: Tensor, dense_dim: int | None = None) -> Any:
    """The matrix, or a batch of them, in CSC layout."""
    return to_sparse(self, layout=tt.sparse_csc, dense_dim=dense_dim)


def to_sparse_bsr(self: Tensor, blocksize: Any, dense_dim: int | None = None) -> Any:
    """The matrix in BSR layout: the blocks of (height, width) that have an element that is not zero."""
    return to_sparse(self, layout=tt.sparse_bsr, blocksize=blocksize, dense_dim=dense_dim)


def to_sparse_bsc(self: Tensor, blocksize: Any, dense_dim: int | None = None) -> Any:
    """The matrix in BSC layout: the blocks of (height, width) that have an element that is not zero."""
    return to_sparse(self, layout=tt.sparse_bsc, blocksize=blocksize, dense_dim=dense_dim)


def to_dense(self: Tensor, dtype: Any = None, *, masked_grad: bool | None = None) -> Tensor:
    """The tensor itself, or a cast."""
    return self if dtype is None else self.to(dtype)


def sparse_dim(self: Tensor) -> int:
    """Returns 0."""
    return 0


def dense_dim(self: Tensor) -> int:
    """Returns the number of dimensions."""
    return self.dim()


def _refusing(name: str, layout: str) -> Any:
    def refuse(self: Tensor) -> Any:
        """RuntimeError: only sparse tensors have it."""
        raise RuntimeError(f"{name} expected {layout} tensor layout but got Strided")

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


def attach() -> None:
    """Adds the methods of dense tensors that concern sparse ones; called once, at import."""
    methods = {
        each.__name__: each
        for each in (
            to_sparse,
            to_sparse_coo,
            to_sparse_csr,
            to_sparse_csc,
            to_sparse_bsr,
            to_sparse_bsc,
            to_dense,
            sparse_dim,
            dense_dim,
            sparse_mask,
            smm,
            sspaddmm,
        )
    }
    coo, rows, columns = "sparse coordinate", "sparse row compressed", "sparse column compressed"
    for name, layout in {
        "coalesce": coo, "is_coalesced": coo, "indices": coo, "values": "sparse", "crow_indices": rows,
        "col_indices": rows, "ccol_indices": columns, "row_indices": columns,
    }.items():  # fmt: skip
        methods[name] = _refusing(name, layout)
    for name, method in methods.items():
        setattr(Tensor, name, _core.method(method))
