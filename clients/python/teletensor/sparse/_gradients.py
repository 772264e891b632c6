"""Sparse gradients: those of a table of which an operation has looked up some rows.

`lookup` records a node that gives the backward the rows and their places, and the native half of the client
(`_core/session/row_gradients.h`) calls the other functions of this module. So no tensor of the size of the
table is made, neither here nor on the daemon.
"""

from __future__ import annotations

from typing import Any

from .. import _api as tt, _core
from .._core import Tensor, ops
from ._coo import CooTensor
from ._places import flat_places, grouped
from ._tensor import SparseTensor

__all__ = ["Rows", "accumulate", "add_to", "checked", "gives_rows", "lookup", "of_rows", "with_rows"]

_Rows = list[tuple[Tensor, Tensor]]  # places [n] and values [n, ...]


def gives_rows(table: Tensor) -> bool:
    """Can the gradient of `table` be sparse? It can if `table` is a leaf whose gradient is wanted, outside
    of vmap and of forward mode."""
    return (
        table.requires_grad
        and table.is_leaf
        and _core.grad_mode()
        and not _core.depth()
        and not hasattr(table, "sharding")  # fully_shard sends parts of dense gradients
    )


def lookup(table: Tensor, indices: Tensor, padding: int | None, by_frequency: bool = False) -> Tensor:
    """Row table[i] for every index i: the op `embedding`, with a sparse gradient of the table.

    NotImplementedError in a captured function. RuntimeError in backward with `by_frequency`, for which
    PyTorch has no sparse gradients either.
    """
    if _core.tracing(table._session):
        raise NotImplementedError(
            "embedding: sparse=True is not supported in a captured function, which has dense gradients "
            "only; call the lookup outside of it, or use sparse=False"
        )
    with tt.no_grad():
        rows = ops["embedding"](table, indices, *([] if padding is None else [padding]))

    def run(node: Any, gradients: list[Any]) -> list[None]:
        if by_frequency:
            raise RuntimeError("embedding_backward: scale_grad_by_freq not supported with sparse gradients")
        if _core.depth():
            raise NotImplementedError("embedding: a sparse gradient inside vmap is not supported")
        places = node._saved(slots[0]).reshape((-1,)).to(tt.int64)
        values = gradients[0].reshape((places.shape[0], *gradients[0].shape[-1:]))
        if padding is None:
            values = values.clone()
        else:
            values = tt.where((places == padding).unsqueeze(1), 0, values)
        _core.give_rows(node, (places, values))
        return [None]

    results, slots, _ = _core.function_node([table], [rows], [indices], run, "EmbeddingBackward0")
    found: Tensor = results[0]
    return found


def _joined(given: _Rows) -> tuple[Tensor, Tensor]:
    if len(given) == 1:
        return given[0]
    first = given[::-1]  # A backward comes to the first lookup last.
    return tt.cat([places for places, _ in first]), tt.cat([values for _, values in first])


def of_rows(table: Tensor, given: _Rows) -> Any:
    """The sparse gradient of a table, after its hooks."""
    places, values = _joined(given)
    # An index out of range is an error of the rows that were looked up, on which the values depend.
    gradient: Any = CooTensor(
        places.unsqueeze(0), values, tuple(table.shape), values.shape[0] < 2, True
    )
    for hook in table._hooks():
        changed = hook(gradient)
        if changed is None:
            continue
        if not isinstance(changed, SparseTensor):
            raise RuntimeError(
                "backward: a hook has changed the type of the gradient: from a sparse tensor to "
                f"{_core.described(changed)}"
            )
        if tuple(changed.shape) != tuple(gradient.shape) or changed.dtype != gradient.dtype:
            raise RuntimeError(
                f"backward: a hook has changed the gradient's shape or dtype: {list(gradient.shape)} to "
                f"{list(changed.shape)}"
            )
        gradient = changed
    return gradient


def with_rows(dense: Tensor, given: _Rows) -> Tensor:
    """The sum of a dense gradient and of rows."""
    places, values = _joined(given)
    return dense.index_add(0, places, values)


def accumulate(table: Tensor, gradient: Any) -> None:
    """Adds a gradient to .grad of the table, and calls the hooks that run after that."""
    old: Any = table.grad
    if old is None:
        table.grad = gradient
    elif _core.grad_mode():
        table.grad = old + gradient
    else:
        old.add_(gradient)
    for hook in table._post_hooks():
        hook(table)


def add_to(dense: Tensor, gradient: Any) -> None:
    """Adds the sparse gradient to a dense one, in place."""
    with tt.no_grad():
        dense.add_(gradient)


def checked(table: Tensor, value: Any) -> Any:
    """Returns `value`, which is assigned to .grad of the table. TypeError if it is no sparse tensor,
    RuntimeError if it does not fit."""
    if not isinstance(value, SparseTensor):
        raise TypeError(f"grad must be a Tensor, not {_core.described(value)}")
    if value._session is not table._session:
        raise RuntimeError("grad belongs to another session")
    if value.dtype != table.dtype:
        raise RuntimeError(
            f"attempting to assign a gradient with dtype '{value.dtype}' to a tensor with dtype "
            f"'{table.dtype}'. Please ensure that the gradient and the tensor have the same dtype"
        )
    if value.device != table.device:
        raise RuntimeError(
            f"attempting to assign a gradient with device type '{value.device}' to a tensor with device "
            f"type '{table.device}'. Please ensure that the gradient and the tensor are on the same device"
        )
    if tuple(value.shape) != tuple(table.shape):
        raise RuntimeError(
            f"attempting to assign a gradient of size '{list(value.shape)}' to a tensor of size "
            f"'{list(table.shape)}'. Please ensure that the gradient and the tensor are the same size"
        )
    return value


class Rows:
    """The rows, of a table and of tensors of its shape, that a sparse gradient has: `sums` [n, ...] are the
    gradients of the rows. A row that has several values is repeated with the same sum, so that nothing
    waits for the number of rows."""

    def __init__(self, gradient: SparseTensor) -> None:
        coo = gradient.to_sparse_coo()
        self._sizes = coo._sizes
        self.sums: Tensor = coo._data
        self._places = flat_places(coo._places, coo._sizes, coo._inside)
        if not coo.is_coalesced():
            self._places, groups, sums = grouped(coo._data, self._places)
            self.sums = sums.index_select(0, groups)

    def _flat(self, x: Tensor) -> Tensor:
        return x if len(self._sizes) == 1 else x.view((-1, *x.shape[len(self._sizes) :]))

    def of(self, x: Tensor) -> Tensor:
        """The rows of a tensor [n, ...]."""
        return self._flat(x).index_select(0, self._places)

    def put(self, x: Tensor, rows: Tensor) -> None:
        """Replaces the rows of a tensor in place. Repeated rows must be equal."""
        self._flat(x).index_copy_(0, self._places, rows)
