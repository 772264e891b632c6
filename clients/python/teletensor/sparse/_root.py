"""The names of sparse tensors that the root package has."""

from __future__ import annotations

from ._make import (
    sparse_bsc_tensor,
    sparse_bsr_tensor,
    sparse_compressed_tensor,
    sparse_coo_tensor,
    sparse_csc_tensor,
    sparse_csr_tensor,
)
from ._products import addmm, hspmm, mm, smm, sspaddmm

__all__ = [
    "dsmm", "hsmm", "hspmm", "saddmm", "smm", "sparse_bsc_tensor", "sparse_bsr_tensor",
    "sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor", "sspaddmm",
]  # fmt: skip

dsmm, hsmm, saddmm = mm, hspmm, addmm
