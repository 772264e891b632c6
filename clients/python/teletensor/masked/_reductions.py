"""Reductions and normalisations of the elements at which a mask is true."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import _api as tt, linalg
from .._core import Tensor
from .._functions.common import wrap_dim
from ._tensor import MaskedTensor

__all__ = [
    "amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "log_softmax", "logaddexp", "logsumexp",
    "mean",
    "median", "norm", "normalize", "prod", "softmax", "softmin", "std", "sum", "var",
]  # fmt: skip

Input = Tensor | MaskedTensor


def _lowest(dtype: Any) -> Any:
    return (
        -math.inf
        if dtype.is_floating_point or dtype.is_complex
        else (False if dtype == tt.bool else tt.iinfo(dtype).min)
    )


def _highest(dtype: Any) -> Any:
    return math.inf if dtype.is_floating_point else True if dtype == tt.bool else tt.iinfo(dtype).max


def _mask_of(input: Tensor, mask: Tensor) -> Tensor:
    if mask.dim() > input.dim():
        raise IndexError("the mask has more dimensions than the input")
    wide: Tensor = tt.broadcast_to(mask.to(tt.bool), input.shape)
    return wide


def _parts(name: str, input: Any, mask: Any) -> tuple[Tensor, Tensor | None]:
    """The elements, and the mask in their shape; None if all elements count."""
    if isinstance(input, MaskedTensor):
        return input._data, input._mask
    if not isinstance(input, Tensor):
        raise TypeError(
            f"masked.{name}(): argument 'input' must be Tensor or MaskedTensor, not {type(input).__name__}"
        )
    if mask is not None and not isinstance(mask, Tensor):
        raise TypeError(f"masked.{name}(): argument 'mask' must be Tensor, not {type(mask).__name__}")
    return input, None if mask is None else _mask_of(input, mask)


def _filled(x: Tensor, mask: Tensor | None, identity: Any) -> Tensor:
    """x with the identity of the reduction where the mask is false."""
    if mask is None:
        return x
    filled: Tensor = tt.where(mask, x, tt.tensor(identity, dtype=x.dtype, device=x.device))
    return filled


def _dims(dim: Any, rank: int) -> tuple[int, ...]:
    if dim is None or dim in ((), []):
        return tuple(range(rank))
    found = [wrap_dim(each, rank) for each in ((dim,) if isinstance(dim, int) else dim)]
    for each in found:
        if found.count(each) > 1:
            raise RuntimeError(f"dim={each} appears multiple times in the list of dims")
    return tuple(sorted(found))


def _wide(dtype: Any) -> Any:
    """The dtype in which elements are added and multiplied: int64 for integers."""
    return dtype if dtype.is_floating_point or dtype.is_complex else tt.int64


def sum(
    input: Input, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """The sum of the elements at which `mask`, which is broadcast to input's shape, is true; 0 for none."""
    x, mask = _parts("sum", input, mask)
    return tt.sum(_filled(x, mask, 0), _dims(dim, x.dim()), keepdim, dtype=dtype or _wide(x.dtype))


def prod(
    input: Input, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """The product of the elements at which `mask` is true; 1 for none."""
    x, mask = _parts("prod", input, mask)
    result = _filled(x, mask, 1).to(dtype or _wide(x.dtype))
    for d in reversed(_dims(dim, x.dim())):
        result = result.prod(d, keepdim)
    return result


def cumsum(input: Input, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Cumulative sums along dim, in which the elements at which `mask` is false count as 0."""
    x, mask = _parts("cumsum", input, mask)
    return _filled(x, mask, 0).cumsum(dim, dtype=dtype or x.dtype).to(dtype or x.dtype)


def cumprod(input: Input, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    """Cumulative products along dim, in which the elements at which `mask` is false count as 1."""
    x, mask = _parts("cumprod", input, mask)
    return _filled(x, mask, 1).cumprod(dim, dtype=dtype or x.dtype).to(dtype or x.dtype)


def amax(
    input: Input, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """The largest element at which `mask` is true; the lowest number of the dtype for none."""
    x, mask = _parts("amax", input, mask)
    return tt.amax(_filled(x, mask, _lowest(x.dtype)), _dims(dim, x.dim()), keepdim).to(dtype or x.dtype)


def amin(
    input: Input, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """The smallest element at which `mask` is true; the highest number of the dtype for none."""
    x, mask = _parts("amin", input, mask)
    return tt.amin(_filled(x, mask, _highest(x.dtype)), _dims(dim, x.dim()), keepdim).to(dtype or x.dtype)


def argmax(
    input: Input,
    dim: int | None = None,
    *,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The index of the largest element at which `mask` is true, as a number of input's dtype (as in
    PyTorch) unless `dtype` is given."""
    x, mask = _parts("argmax", input, mask)
    return tt.argmax(_filled(x, mask, _lowest(x.dtype)), dim, keepdim).to(dtype or x.dtype)


def argmin(
    input: Input,
    dim: int | None = None,
    *,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The index of the smallest element at which `mask` is true, as a number of input's dtype (as in
    PyTorch) unless `dtype` is given."""
    x, mask = _parts("argmin", input, mask)
    return tt.argmin(_filled(x, mask, _highest(x.dtype)), dim, keepdim).to(dtype or x.dtype)


def _count(x: Tensor, mask: Tensor | None, dim: Any, keepdim: bool) -> Tensor:
    given = tt.ones(x.shape, dtype=tt.bool, device=x.device) if mask is None else mask
    return tt.sum(given, _dims(dim, x.dim()), keepdim, dtype=tt.int64)


def mean(
    input: Input, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """The mean of the elements at which `mask` is true; NaN for none. ValueError for a dtype that is
    neither floating-point nor complex."""
    x, mask = _parts("mean", input, mask)
    wanted = dtype or x.dtype
    if not (wanted.is_floating_point or wanted.is_complex):
        raise ValueError(
            f"mean(): Could not infer output dtype. {'Optional' if dtype else 'Input'} dtype must "
            f"be either a floating point or complex dtype. Got: {wanted}"
        )
    return sum(x, dim, keepdim=keepdim, dtype=wanted, mask=mask) / _count(x, mask, dim, keepdim)


def median(
    input: Input, dim: int = -1, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """The median of the elements along dim at which `mask` is true; NaN for none. For an integer dtype this
    waits, and a ValueError says that there is none."""
    x, mask = _parts("median", input, mask)
    floating = x.is_floating_point()
    values = x if floating else x.to(tt.float32)
    result: Tensor = tt.nanmedian(_filled(values, mask, math.nan), wrap_dim(dim, x.dim()), keepdim)[0]
    if floating:
        return result
    if bool(result.isnan().any()):
        raise ValueError("masked median expects no fully masked out rows if dtype is not floating point")
    return result.to(dtype or x.dtype)


def logsumexp(
    input: Input, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """The logarithm of the sum of the exponentials of the elements at which `mask` is true."""
    x, mask = _parts("logsumexp", input, mask)
    return tt.logsumexp(_filled(x, mask, _lowest(x.dtype)), _dims(dim, x.dim()), keepdim).to(
        dtype or x.dtype
    )


def logaddexp(
    input: Input,
    other: Input,
    *,
    dtype: Any = None,
    input_mask: Tensor | None = None,
    other_mask: Tensor | None = None,
) -> Tensor:
    """log(exp(input) + exp(other)), in which elements at which their mask is false count as minus
    infinity."""
    x, mask = _parts("logaddexp", input, input_mask)
    y, second = _parts("logaddexp", other, other_mask)
    result = tt.logaddexp(_filled(x, mask, -math.inf), _filled(y, second, -math.inf))
    return result.to(dtype or x.dtype)


def norm(
    input: Input,
    ord: float | None = 2.0,
    dim: Any = None,
    *,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The vector norm of the elements at which `mask` is true."""
    x, mask = _parts("norm", input, mask)
    order = 2.0 if ord is None else ord
    filled = _filled(x, mask, math.inf if order == -math.inf else 0)
    result: Tensor = linalg.vector_norm(filled, order, _dims(dim, x.dim()), keepdim, dtype=dtype or x.dtype)
    return result


def var(
    input: Input,
    dim: Any = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The variance of the elements at which `mask` is true: their squared distances from the mean, divided
    by their number minus `correction` (1, or 0 with unbiased=False)."""
    if unbiased is not None and correction is not None:
        raise AssertionError("Only one of unbiased and correction may be given")
    less = float(correction) if correction is not None else 0.0 if unbiased is False else 1.0
    x, mask = _parts("var", input, mask)
    wanted = dtype or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else tt.float32)
    count = _count(x, mask, dim, True)
    away = x - sum(x, dim, keepdim=True, dtype=wanted, mask=mask) / count
    total = sum(away * away.conj(), dim, keepdim=keepdim, dtype=wanted, mask=mask)
    number = count.reshape(total.shape).to(total.real.dtype if total.is_complex() else wanted)
    return (total / (number - less).clamp(min=0)).to(wanted)


def std(
    input: Input,
    dim: Any = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
    dtype: Any = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The square root of `var`."""
    return var(input, dim, unbiased, correction=correction, keepdim=keepdim, dtype=dtype, mask=mask).sqrt()


def _normal(name: str, function: Callable[..., Tensor], fill: Callable[[Any], Any]) -> Any:
    def call(input: Input, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
        x, mask = _parts(name, input, mask)
        return function(_filled(x, mask, fill(x.dtype)), wrap_dim(dim, x.dim()), dtype=dtype or x.dtype)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = (
        f"{name} along dim over the elements at which `mask` is true; the others have no share. NaN "
        "where there are none."
    )
    return call


softmax = _normal("softmax", tt.softmax, _lowest)
log_softmax = _normal("log_softmax", tt.log_softmax, _lowest)
softmin = _normal("softmin", lambda x, dim, dtype: tt.softmax(-x, dim, dtype=dtype), _highest)


def normalize(
    input: Input, ord: float, dim: int, *, eps: float = 1e-12, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    """The elements divided by their norm along dim, or by eps if that is larger; 0 where `mask` is
    false."""
    x, mask = _parts("normalize", input, mask)
    length = norm(x, ord, dim, keepdim=True, dtype=dtype, mask=mask)
    return _filled(x, mask, 0) / length.clamp(min=eps)
