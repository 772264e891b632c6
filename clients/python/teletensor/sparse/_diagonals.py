"""spdiags: a sparse matrix from its diagonals."""

from __future__ import annotations

from typing import Any

from .. import _api as tt
from .._core import Tensor
from ._coo import CooTensor

__all__ = ["spdiags"]


def spdiags(diagonals: Tensor, offsets: Tensor, shape: Any, layout: Any = None) -> Any:
    """The sparse matrix of that shape in which row i of `diagonals` is the diagonal offsets[i]: element j
    of the row is in column j. Offsets are distinct; positive ones are above the main diagonal. Waits."""
    lines = diagonals.reshape((1, -1)) if diagonals.dim() == 1 else diagonals
    if lines.dim() != 2:
        raise RuntimeError("Diagonals must be vector or matrix")
    if len(shape) != 2:
        raise RuntimeError("Output shape must be 2d")
    given = offsets.reshape(-1).tolist()
    if len(given) != lines.shape[0]:
        raise RuntimeError(
            f"Number of diagonals ({lines.shape[0]}) does not match the number of offsets ({len(given)})"
        )
    if len(set(given)) != len(given):
        raise RuntimeError("Offset tensor contains duplicate values")
    if layout not in (None, tt.sparse_coo, tt.sparse_csr, tt.sparse_csc):
        raise RuntimeError(
            f"Only output layouts (Sparse, SparseCsr, and SparseCsc) are supported, got {layout}"
        )
    height, width = shape
    rows, columns, values = [], [], []
    for line, offset in zip(lines, given, strict=True):
        first, end = max(0, offset), min(width, lines.shape[1], height + offset)
        at = tt.arange(first, max(first, end), device=lines.device)
        rows.append(at - offset)
        columns.append(at)
        values.append(line[first : max(first, end)])
    places = tt.stack([tt.cat(rows), tt.cat(columns)])
    made = CooTensor(places, tt.cat(values), (height, width), False, True)
    return made if layout is None else made.to_sparse(layout=layout)
