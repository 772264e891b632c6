"""Conversion of sparse tensors from and to PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _api as tt
from ._blocks import of_parts
from ._coo import CooTensor
from ._tensor import SparseTensor

__all__ = ["of_torch", "to_torch"]


def of_torch(tensor: Any, convert: Callable[[Any], Any]) -> SparseTensor:
    """The sparse tensor of PyTorch, whose dense parts `convert` converts. TypeError for layouts that
    teletensor does not have."""
    name, shape = str(tensor.layout).rpartition(".")[2], tuple(tensor.shape)
    made: SparseTensor
    if name == "sparse_coo":
        made = CooTensor(
            convert(tensor._indices()), convert(tensor._values().detach()), shape, tensor.is_coalesced()
        )
    elif name in ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"):
        by_column = name in ("sparse_csc", "sparse_bsc")
        starts = tensor.ccol_indices() if by_column else tensor.crow_indices()
        others = tensor.row_indices() if by_column else tensor.col_indices()
        values = convert(tensor.values().detach())
        made = of_parts(getattr(tt, name), convert(starts), convert(others), values, shape, False)
    else:
        raise TypeError(
            f"from_torch: a tensor of layout {tensor.layout} and shape {list(shape)} is not supported; "
            "convert its to_dense()"
        )
    return made.requires_grad_() if tensor.requires_grad else made


def to_torch(tensor: SparseTensor, convert: Callable[[Any], Any]) -> Any:
    """The sparse tensor as one of PyTorch, whose dense parts `convert` converts. Waits for them."""
    import torch

    parts = [convert(part) for part in (*tensor._parts().values(), tensor._data.detach())]
    if isinstance(tensor, CooTensor):
        made = torch.sparse_coo_tensor(*parts, tensor._shape, is_coalesced=tensor._coalesced or None)
    else:
        layout = getattr(torch, repr(tensor.layout).rpartition(".")[2])
        made = torch.sparse_compressed_tensor(*parts, tensor._shape, layout=layout)
    return made.requires_grad_() if tensor.requires_grad else made
