"""Products of nested tensors, and attention over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor
from ..nn import functional
from ._tensor import NestedTensor, to_padded_tensor, unsupported

__all__ = ["FORMS"]


def linear(input: Any, weight: Tensor, bias: Tensor | None = None) -> NestedTensor:
    if not isinstance(input, NestedTensor) or not isinstance(weight, Tensor):
        unsupported("linear", "only the input may be nested")
    if input._dim == input.ndim - 1:
        unsupported("linear", "the last dimension is ragged")
    return input._like(functional.linear(input._data, weight, bias))


def _padded(input: NestedTensor) -> Tensor:
    """The tensors of the batch with zeros behind each, of the length of the longest, but not 0."""
    rows = input._ragged.pad(input._rows(), 0, max(input._ragged.longest, 1))
    return rows.movedim(1, input._dim)


def _from_padded(like: NestedTensor, padded: Tensor) -> NestedTensor:
    """The nested tensor for a padded one, in which the ragged dimension is as in `like`."""
    return like._of_rows(like._ragged.unpad(padded.movedim(like._dim, 1)))


def matmul(input: Any, other: Any) -> Any:
    """The products of matrices: a nested tensor with ragged rows if the rows of `input`, or the columns of
    `other`, are ragged; a dense one if the ragged dimensions of both are multiplied."""
    left, right = isinstance(input, NestedTensor), isinstance(other, NestedTensor)
    for each, nested in ((input, left), (other, right)):
        if not nested and not isinstance(each, Tensor):
            raise TypeError(f"matmul(): expected a tensor, got {type(each).__name__}")
    if left and not right and input._dim < input.ndim - 1 and other.dim() == 2:
        return input._like(tt.matmul(input._data, other))
    rows = left and input._dim == input.ndim - 2
    columns = right and other._dim == other.ndim - 1
    if left and right:
        inner = input._dim == input.ndim - 1 and other._dim == other.ndim - 2
        if not inner or input._ragged != other._ragged:
            unsupported("matmul", f"the shapes {input.shape} and {other.shape} do not fit")
        return tt.matmul(to_padded_tensor(input, 0), to_padded_tensor(other, 0))
    if rows and other.dim() == input.ndim:
        return _from_padded(input, tt.matmul(to_padded_tensor(input, 0), other))
    if columns and input.dim() == other.ndim:
        return _from_padded(other, tt.matmul(input, to_padded_tensor(other, 0)))
    unsupported("matmul", f"the shapes {tuple(input.shape)} and {tuple(other.shape)} do not fit")


def bmm(input: Any, mat2: Any) -> Any:
    if len(input.shape) != 3 or len(mat2.shape) != 3:
        raise RuntimeError(f"bmm: shapes {tuple(input.shape)} and {tuple(mat2.shape)} do not fit")
    return matmul(input, mat2)


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> NestedTensor:
    """Attention of each tensor of the batch to itself, or to the tensor of the same number in `key` and
    `value`: shapes [batch, ..., ragged, features]. The work is that of the longest lengths."""
    name = "scaled_dot_product_attention"
    for each in (query, key, value):
        if not isinstance(each, NestedTensor) or each._dim != each.ndim - 2:
            unsupported(name, "query, key and value must be nested tensors [batch, ..., ragged, features]")
    if attn_mask is not None:
        unsupported(name, "attn_mask must be None for nested tensors")
    if key._ragged != value._ragged or query._ragged.batch != key._ragged.batch:
        raise RuntimeError(
            f"{name}(): key and value must have the same lengths, and query as many tensors, got the "
            f"shapes {query.shape}, {key.shape} and {value.shape}"
        )
    q, k, v = (_padded(each) for each in (query, key, value))
    places = tt.arange(k.shape[-2], device=q.device)
    # A tensor without keys gets one, whose value is 0: so is the result.
    kept = places < key._ragged.on(q.device).sizes().clamp(min=1).reshape((-1, *(1,) * (q.dim() - 1)))
    if is_causal:
        kept = kept & (places <= tt.arange(q.shape[-2], device=q.device).unsqueeze(-1))
    found = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=kept, dropout_p=dropout_p, scale=scale, enable_gqa=enable_gqa
    )
    return _from_padded(query, found)


FORMS: dict[str, Callable[..., Any]] = {
    "linear": linear, "matmul": matmul, "bmm": bmm, "scaled_dot_product_attention": attention,
}  # fmt: skip
