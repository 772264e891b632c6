"""Sparse tensors: COO, and matrices in CSR, CSC, BSR and BSC layout and batches, with PyTorch's names.

A sparse tensor keeps indices and values as dense tensors of the daemon; its functions are made of the ops
for dense tensors, so that they are differentiable, wait only where a number of places decides a shape,
and run on every device.
"""

from __future__ import annotations

from . import _arrange, _dense, _pointwise, _products, _reductions, _tensor
from ._diagonals import spdiags
from ._make import check_sparse_tensor_invariants
from ._products import addmm, mm, sampled_addmm
from ._reductions import log_softmax, softmax, sum
from ._tensor import SparseTensor

__all__ = [
    "SparseTensor", "addmm", "check_sparse_tensor_invariants", "log_softmax", "mm", "sampled_addmm",
    "softmax", "spdiags", "sum",
]  # fmt: skip

for _forms in (_pointwise.FORMS, _products.FORMS, _reductions.FORMS, _arrange.FORMS):
    _tensor.FORMS.update(_forms)
_dense.attach()
