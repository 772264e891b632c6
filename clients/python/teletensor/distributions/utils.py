"""Helpers for distributions of other libraries, as in `torch.distributions.utils`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import _api as tt
from .._core import Tensor

__all__ = [
    "broadcast_all", "clamp_probs", "lazy_property", "logits_to_probs", "probs_to_logits",
    "tril_matrix_to_vec", "vec_to_tril_matrix",
]  # fmt: skip

euler_constant = 0.57721566490153286060


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Returns tensors and numbers as tensors of one shape. ValueError for anything else.

    Numbers get the dtype and device of the first tensor, or the defaults if there is no tensor."""
    if not all(isinstance(v, (Tensor, int, float)) for v in values):
        raise ValueError("Input arguments must all be instances of Number, or Tensor.")
    like = next((v for v in values if isinstance(v, Tensor)), None)
    dtype, device = (tt.get_default_dtype(), None) if like is None else (like.dtype, like.device)
    return tt.broadcast_tensors(
        *(v if isinstance(v, Tensor) else tt.tensor(v, dtype=dtype, device=device) for v in values)
    )  # type: ignore[return-value]


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """sigmoid if is_binary, and otherwise softmax over the last dimension."""
    return tt.sigmoid(logits) if is_binary else tt.softmax(logits, dim=-1)


def clamp_probs(probs: Tensor) -> Tensor:
    """Clamps probabilities to at least eps and at most 1 - eps, where eps is that of the dtype."""
    eps = tt.finfo(probs.dtype).eps
    return probs.clamp(min=eps, max=1 - eps)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """The logarithm of the result of clamp_probs, or with is_binary the logarithm of its odds."""
    clamped = clamp_probs(probs)
    return tt.log(clamped) - tt.log1p(-clamped) if is_binary else tt.log(clamped)


class lazy_property:
    """A property that is computed once, with gradients recorded, and then stored as an attribute."""

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        self.wrapped = wrapped
        functools.update_wrapper(self, wrapped)  # type: ignore[arg-type]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        with tt.enable_grad():
            value = self.wrapped(instance)
        setattr(instance, self.wrapped.__name__, value)
        return value


def tril_matrix_to_vec(mat: Tensor, diag: int = 0) -> Tensor:
    """Converts [..., n, n] to [..., m]: the elements on and below diagonal `diag`, row by row."""
    n = mat.shape[-1]
    if not -n <= diag < n:
        raise ValueError(f"diag ({diag}) provided is outside [{-n}, {n - 1}].")
    rows, columns = tt.tril_indices(n, n, diag)
    return mat[..., rows, columns]


def vec_to_tril_matrix(vec: Tensor, diag: int = 0) -> Tensor:
    """The inverse of tril_matrix_to_vec, with zeros above the diagonal. ValueError for a length that is not
    that of a triangle."""
    length = vec.shape[-1]
    n = (-(1 + 2 * diag) + ((1 + 2 * diag) ** 2 + 8 * length + 4 * abs(diag) * (diag + 1)) ** 0.5) / 2
    if abs(n - round(n)) > tt.finfo(vec.dtype).eps:
        raise ValueError(
            f"The size of last dimension is {length} which cannot be expressed as the lower triangular "
            "part of a square D x D matrix."
        )
    out = vec.new_zeros((*vec.shape[:-1], round(n), round(n)))
    rows, columns = tt.tril_indices(round(n), round(n), diag)
    out[..., rows, columns] = vec
    return out


def _standard_normal(shape: Any, dtype: Any, device: Any) -> Tensor:
    return tt.randn(tuple(shape), dtype=dtype, device=device)
