"""Makers of sparse tensors, and the checks of their parts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from .. import _api as tt
from .._core import Tensor
from ._blocks import of_parts
from ._coo import CooTensor
from ._places import ascending, check_inside

__all__ = [
    "check_sparse_tensor_invariants", "sparse_bsc_tensor", "sparse_bsr_tensor",
    "sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


class check_sparse_tensor_invariants:
    """Sets whether makers of sparse tensors check index tensors, which waits for them: a context manager,
    a decorator, or `enable` and `disable`. Indices in lists and arrays are always checked."""

    _enabled = False

    def __init__(self, enable: bool = True) -> None:
        self._wanted = enable
        self._outer: list[bool] = []

    @staticmethod
    def is_enabled() -> bool:
        """Are index tensors checked?"""
        return check_sparse_tensor_invariants._enabled

    @staticmethod
    def enable() -> None:
        """Makes makers check index tensors."""
        check_sparse_tensor_invariants._enabled = True

    @staticmethod
    def disable() -> None:
        """Makes makers check only indices in lists and arrays."""
        check_sparse_tensor_invariants._enabled = False

    def __enter__(self) -> check_sparse_tensor_invariants:
        self._outer.append(self.is_enabled())
        check_sparse_tensor_invariants._enabled = self._wanted
        return self

    def __exit__(self, *_: Any) -> None:
        check_sparse_tensor_invariants._enabled = self._outer.pop()

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self._wanted):
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]


def _checks(check_invariants: bool | None) -> bool:
    """Are index tensors checked?"""
    return check_sparse_tensor_invariants.is_enabled() if check_invariants is None else check_invariants


def _index_tensor(name: str, data: Any, device: Any, dims: int | None = None) -> tuple[Tensor, bool]:
    """The indices as a tensor of `dims` dimensions (at least one), and whether they are checked without
    waiting: data of this process are, and a tensor is not."""
    known = not isinstance(data, Tensor)
    if known:
        data = np.asarray(data)
        if data.size == 0 and data.dtype.kind == "f":
            data = data.astype(np.int64)
    integers = (
        data.dtype.kind in "iu"
        if known
        else not (data.dtype.is_floating_point or data.dtype.is_complex or data.dtype == tt.bool)
    )
    if not integers:
        raise RuntimeError(f"{name} must be integers, got {data.dtype if known else data.dtype.name}")
    if data.ndim != (max(data.ndim, 1) if dims is None else dims):
        wanted = dims or 1
        raise RuntimeError(f"{name} must have {wanted} dimension{'s' * (wanted > 1)}, got {data.ndim}")
    return tt.as_tensor(data, device=device), known


def _values_tensor(values: Any, dtype: Any, device: Any, requires_grad: bool) -> Tensor:
    """The values of the new tensor: a leaf if it requires grad, and otherwise a tensor with the history of
    what was given."""
    made: Tensor = tt.as_tensor(values, dtype=dtype, device=device)
    if requires_grad:
        return made.detach().requires_grad_()
    return made.view_as(made) if made.requires_grad else made


def _sizes_of(size: Any) -> tuple[int, ...]:
    sizes = tuple(int(each) for each in size)
    if any(each < 0 for each in sizes):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(sizes)}: {list(sizes)}")
    return sizes


def _is_size(data: Any) -> bool:
    return isinstance(data, (tuple, list)) and all(isinstance(each, int) for each in data)


def sparse_coo_tensor(
    indices: Any = None,
    values: Any = None,
    size: Any = None,
    *,
    dtype: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
    is_coalesced: bool | None = None,
) -> CooTensor:
    """The sparse tensor with values [nnz, ...] at indices [sparse_dim, nnz]; values at the same place are
    added. Without `size`, the largest indices decide, which waits for them if indices is a tensor.
    `sparse_coo_tensor(size)` has no values.

    RuntimeError for parts that do not fit. Indices in lists and arrays are checked at once; those in a
    tensor with check_invariants only, and otherwise an index out of range raises an error when a result is
    read.

    >>> tt.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3)).to_dense().tolist()
    [[0.0, 0.0, 3.0], [4.0, 0.0, 0.0]]
    """
    if values is None:
        size = indices if size is None and _is_size(indices) else size
        if size is None:
            raise TypeError("sparse_coo_tensor() needs a size, or indices and values")
        sizes = _sizes_of(size)
        nothing = tt.zeros(0, dtype=dtype, device=device)
        places = tt.zeros(len(sizes), 0, dtype=tt.int64, device=device)
        return CooTensor(places, nothing.requires_grad_(requires_grad), sizes, True, True)
    made = _values_tensor(values, dtype, device, requires_grad)
    places, known = _index_tensor("indices", indices, made.device, 2)
    if made.dim() == 0 or made.shape[0] != places.shape[1]:
        raise RuntimeError(
            f"indices and values must have same nnz, but got nnz from indices: "
            f"{places.shape[1]}, nnz from values: {made.shape[0] if made.dim() else 1}"
        )
    check = _checks(check_invariants)
    count, dense = places.shape[0], tuple(made.shape[1:])
    if size is None:
        sizes = (*_inferred(np.asarray(indices) if known else places.numpy()), *dense)
    else:
        sizes = _sizes_of(size)
        if len(sizes) != count + len(dense):
            raise RuntimeError(
                f"'len(size) == sparse_dim + dense_dim' is not satisfied: len(size) = "
                f"{len(sizes)}, sparse_dim = {count}, dense_dim = {len(dense)}"
            )
        if sizes[count:] != dense:
            raise RuntimeError(
                f"values has incorrect size, expected {[made.shape[0], *sizes[count:]]}, "
                f"got {list(made.shape)}"
            )
        if known:
            _check_array(np.asarray(indices), sizes)
        elif check:
            check_inside(places, sizes[:count])
    inside = known or check or size is None
    made_tensor = CooTensor(places.to(tt.int64), made, sizes, bool(is_coalesced), inside)
    if is_coalesced and check and not ascending(made_tensor._places, sizes[:count]):
        raise RuntimeError(
            "cannot set is_coalesced to true if indices correspond to uncoalesced COO tensor"
        )
    return made_tensor._coalesced_(bool(is_coalesced) or made.shape[0] < 2)


def _inferred(indices: Any) -> list[int]:
    """One more than the largest index of each row of an array."""
    if indices.size == 0:
        return [0] * indices.shape[0]
    for d, row in enumerate(indices):
        if row.min() < 0:
            raise RuntimeError(f"found negative index {row.min()} for dim {d}")
    return [int(row.max()) + 1 for row in indices]


def _check_array(indices: Any, sizes: Sequence[int]) -> None:
    if indices.size == 0:
        return
    for d, row in enumerate(indices):
        if row.min() < 0:
            raise RuntimeError(f"found negative index {row.min()} for dim {d}")
        if row.max() >= sizes[d]:
            raise RuntimeError(
                f"size is inconsistent with indices: for dim {d}, size is {sizes[d]} but found "
                f"index {row.max()}"
            )


def _check_compressed(names: tuple[str, str], starts: Any, others: Any, width: int) -> None:
    """Checks the arrays [matrices, lines + 1] and [matrices, nnz] of a compressed layout: as the invariants
    of PyTorch say."""
    first, second = names
    count, lines = others.shape[1], starts.shape[1] - 1
    starts, others = starts.astype(np.int64), others.astype(np.int64)
    if (starts[:, 0] != 0).any():
        raise RuntimeError(f"`{first}[..., 0] == 0` is not satisfied.")
    if (starts[:, -1] != count).any():
        raise RuntimeError(f"`{first}[..., -1] == nnz` is not satisfied.")
    lengths = np.diff(starts)
    if ((lengths < 0) | (lengths > width)).any():
        raise RuntimeError(f"`0 <= {first}[..., 1:] - {first}[..., :-1] <= {width}` is not satisfied.")
    if ((others < 0) | (others >= width)).any():
        raise RuntimeError(f"`0 <= {second} < {width}` is not satisfied.")
    line = np.repeat(np.tile(np.arange(lines), starts.shape[0]), lengths.ravel()).reshape(others.shape)
    if not ((np.diff(others) > 0) | (np.diff(line) > 0)).all():
        raise RuntimeError(
            f"`{second}[..., {first}[..., i - 1]:{first}[..., i]] for all i = 1, ..., "
            f"{lines} are sorted and distinct along the last dimension values` is not "
            "satisfied."
        )


def sparse_compressed_tensor(
    compressed_indices: Any,
    plain_indices: Any,
    values: Any,
    size: Any = None,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> Any:
    """The sparse matrix in layout sparse_csr or sparse_csc: the start [rows + 1] of each row (column) in
    the values, the column (row) [nnz] of each value, and values [nnz, ...]. In layout sparse_bsr or
    sparse_bsc, values are blocks [nnz, height, width, ...], and rows and columns are those of blocks. All
    three, and `size`, may begin with the same dimensions, those of a batch of matrices, which have the same
    number of values. RuntimeError for parts that do not fit; they are checked as those of
    `sparse_coo_tensor`."""
    blocked = layout in (tt.sparse_bsr, tt.sparse_bsc)
    if not blocked and layout not in (tt.sparse_csr, tt.sparse_csc):
        raise NotImplementedError(
            f"sparse_compressed_tensor: the layout {layout} is not supported; there are sparse_csr, "
            "sparse_csc, sparse_bsr and sparse_bsc"
        )
    by_column = layout in (tt.sparse_csc, tt.sparse_bsc)
    names = ("ccol_indices", "row_indices") if by_column else ("crow_indices", "col_indices")
    made = _values_tensor(values, dtype, device, requires_grad)
    starts, known = _index_tensor(names[0], compressed_indices, made.device)
    others, known_too = _index_tensor(names[1], plain_indices, made.device, starts.dim())
    batch = tuple(starts.shape[:-1])
    count, given = len(batch), tuple(made.shape)
    if (
        starts.shape[-1] == 0
        or tuple(others.shape[:-1]) != batch
        or given[: count + 1] != tuple(others.shape)
    ):
        raise RuntimeError(
            f"{names[1]} and values must have the same length and the batch of {names[0]}, which must have "
            f"at least one element, but got {list(others.shape)}, {list(given)} and {list(starts.shape)}"
        )
    block = given[count + 1 : count + 3] if blocked else (1, 1)
    if len(block) != 2 or 0 in block:
        raise RuntimeError(
            f"values must be blocks [nnz, height, width] with elements, but got shape {list(given)}"
        )
    dense, lines = given[count + (3 if blocked else 1) :], starts.shape[-1] - 1
    host: list[Any] | None = None
    if known and known_too:
        host = [np.asarray(compressed_indices), np.asarray(plain_indices)]
    elif _checks(check_invariants) or size is None:
        host = [starts.numpy(), others.numpy()]
    if size is None:
        width = int(host[1].max()) + 1 if host and host[1].size else 0
    else:
        sizes = _sizes_of(size)
        width = _width_of(sizes, batch, block, dense, lines, names[0], given)
    if host is not None:
        matrices = math.prod(batch)
        first, second = (each.reshape((matrices, each.shape[-1])) for each in host)
        _check_compressed(names, first, second, width)
    if size is None:
        tall, wide = (width, lines) if by_column else (lines, width)
        sizes = (*batch, tall * block[0], wide * block[1], *dense)
    return of_parts(layout, starts, others, made, sizes, host is not None)


def _width_of(
    sizes: tuple[int, ...],
    batch: tuple[int, ...],
    block: tuple[int, ...],
    dense: tuple[int, ...],
    lines: int,
    name: str,
    given: tuple[int, ...],
) -> int:
    """The number of columns of blocks (rows in CSC and BSC) of a compressed tensor of these sizes.
    RuntimeError if the sizes do not fit the other parts, of which `name` are the starts."""
    count = len(batch)
    if len(sizes) != count + 2 + len(dense) or sizes[count + 2 :] != dense or sizes[:count] != batch:
        raise RuntimeError(
            f"tensor dimensionality must be sum of batch, base, and dense dimensionalities "
            f"(={count} + 2 + {len(dense)}) but got size {list(sizes)} for values of shape {list(given)}"
        )
    matrix = sizes[count : count + 2]
    if any(n % step for n, step in zip(matrix, block, strict=True)):
        raise RuntimeError(f"size {list(sizes)} must be divisible by the blocks' size {list(block)}")
    tall, wide = (n // step for n, step in zip(matrix, block, strict=True))
    by_column = name == "ccol_indices"
    own, width = (wide, tall) if by_column else (tall, wide)
    if own != lines:
        raise RuntimeError(
            f"{name}.shape[-1] must be equal to the number of {'columns' if by_column else 'rows'} + 1 "
            f"(={own + 1}), but got {lines + 1}"
        )
    return width


def sparse_csr_tensor(
    crow_indices: Any, col_indices: Any, values: Any, size: Any = None, **options: Any
) -> Any:
    """The sparse matrix in CSR layout; as `sparse_compressed_tensor`.

    >>> tt.sparse_csr_tensor([0, 1, 3], [2, 0, 1], [1.0, 2.0, 3.0], (2, 3)).to_dense().tolist()
    [[0.0, 0.0, 1.0], [2.0, 3.0, 0.0]]
    """
    return sparse_compressed_tensor(
        crow_indices, col_indices, values, size, layout=tt.sparse_csr, **options
    )


def sparse_csc_tensor(
    ccol_indices: Any, row_indices: Any, values: Any, size: Any = None, **options: Any
) -> Any:
    """The sparse matrix in CSC layout; as `sparse_compressed_tensor`."""
    return sparse_compressed_tensor(
        ccol_indices, row_indices, values, size, layout=tt.sparse_csc, **options
    )


def sparse_bsr_tensor(
    crow_indices: Any, col_indices: Any, values: Any, size: Any = None, **options: Any
) -> Any:
    """The sparse matrix in BSR layout; as `sparse_compressed_tensor`.

    >>> tt.sparse_bsr_tensor([0, 1], [1], [[[1.0, 2.0], [3.0, 4.0]]], (2, 4)).to_dense().tolist()
    [[0.0, 0.0, 1.0, 2.0], [0.0, 0.0, 3.0, 4.0]]
    """
    return sparse_compressed_tensor(
        crow_indices, col_indices, values, size, layout=tt.sparse_bsr, **options
    )


def sparse_bsc_tensor(
    ccol_indices: Any, row_indices: Any, values: Any, size: Any = None, **options: Any
) -> Any:
    """The sparse matrix in BSC layout; as `sparse_compressed_tensor`."""
    return sparse_compressed_tensor(
        ccol_indices, row_indices, values, size, layout=tt.sparse_bsc, **options
    )
