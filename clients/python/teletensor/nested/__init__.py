"""Nested tensors: batches of tensors of different length, with PyTorch's names.

A nested tensor keeps all its elements in one dense tensor, in which they follow one another along the
ragged dimension (PyTorch's layout jagged). Functions are made of the ops for dense tensors, so that they
are differentiable and run on every device. The lengths are known to the program: nothing waits but the
makers that read offsets, lengths or a mask (`nested_tensor_from_jagged`, `narrow`, `masked_select`).
"""

from __future__ import annotations

from . import _arrange, _pointwise, _products, _reductions, _tensor
from ._make import (
    as_nested_tensor,
    masked_select,
    narrow,
    nested_tensor,
    nested_tensor_from_jagged,
)
from ._tensor import NestedTensor, to_padded_tensor

__all__ = [
    "NestedTensor", "as_nested_tensor", "masked_select", "narrow", "nested_tensor",
    "nested_tensor_from_jagged", "to_padded_tensor",
]  # fmt: skip

for _forms in (_pointwise.FORMS, _reductions.FORMS, _arrange.FORMS, _products.FORMS):
    _tensor.FORMS.update(_forms)
