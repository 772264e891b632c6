"""Tensors with random contents for tests, and comparison of tensors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import _api as tt
from ._core import Tensor
from ._names import absent as _absent
from ._tensors.convert import as_tensor

__all__ = ["assert_allclose", "assert_close", "make_tensor"]

_NUMBER = (int, float, complex, np.number)
_TOLERANCES = {  # The relative and the absolute tolerance.
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7), "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7),
}
_LOOSE = {"float16": (1e-3, 1e-3), "float32": (1e-4, 1e-5), "float64": (1e-5, 1e-8)}  # assert_allclose
_SIGN = -(2**63)  # the bit by which the order of int64 differs from that of uint64


def make_tensor(
    *shape: Any,
    dtype: tt.dtype,
    device: Any,
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
    memory_format: tt.memory_format | None = None,
) -> Tensor:
    """Returns a tensor of random values that are uniform in [low, high). The defaults are 0 and 2 for bool,
    0 and 10 for unsigned integers, -9 and 10 for other integers, and -9 and 9 for other dtypes. Bounds
    beyond the finite values of the dtype are moved to them; integer bounds are rounded up.

    With noncontiguous the result is every second element along the last dimension of a larger tensor, if it
    has more than one element. With exclude_zero zeros are 1, or the smallest normal number of the dtype.
    ValueError for bounds that are nan, in the wrong order or outside the dtype; for requires_grad with
    integers; for noncontiguous together with memory_format. Source: torch.testing.make_tensor.

    >>> tt.testing.make_tensor((2, 3), dtype=tt.int8, device="cpu", low=5, high=6).tolist()
    [[5, 5, 5], [5, 5, 5]]
    """
    if len(shape) == 1 and isinstance(shape[0], Sequence):
        shape = tuple(shape[0])
    if noncontiguous and memory_format is not None:
        raise ValueError("The parameters `noncontiguous` and `memory_format` are mutually exclusive, but "
                         f"got noncontiguous={noncontiguous} and memory_format={memory_format}")
    exact = not (dtype.is_floating_point or dtype.is_complex)
    if requires_grad and exact:
        raise ValueError("`requires_grad=True` is not supported for boolean and integral dtypes, but got "
                         f"dtype={dtype}")
    low, high = _bounds(dtype, low, high)
    strided = noncontiguous and math.prod(shape) > 1
    if strided:
        shape = (*shape[:-1], 2 * shape[-1])
    if exact:
        result = _integers(math.ceil(low), math.ceil(high), shape, dtype, device)
    else:
        result = tt.empty(shape, dtype=dtype, device=device)
        part = tt.view_as_real(result) if dtype.is_complex else result
        if high - low >= tt.finfo(dtype).max:  # more than uniform_ takes
            part.uniform_(low / 2, high / 2).mul_(2)
        else:
            part.uniform_(low, high)
    if strided:
        result = result[..., 1::2]  # begins at 1, so that its offset is not 0
    elif memory_format is not None:
        result = result.clone(memory_format=memory_format)
    if exclude_zero:
        result[result == 0] = 1 if exact else tt.finfo(dtype).tiny
    if requires_grad:
        result.requires_grad = True
    return result


def _bounds(dtype: tt.dtype, low: float | None, high: float | None) -> tuple[float, float]:
    """The bounds that make_tensor uses for these arguments."""
    exact = not (dtype.is_floating_point or dtype.is_complex)
    least: float
    beyond: float
    if dtype == tt.bool:
        least, beyond = 0, 2
    elif exact:
        least, beyond = tt.iinfo(dtype).min, tt.iinfo(dtype).max + (dtype.itemsize < 8)
    else:
        least, beyond = tt.finfo(dtype).min, tt.finfo(dtype).max
    low = (-9 if dtype != tt.bool else 0) if low is None else low
    high = (9 + exact if dtype != tt.bool else 2) if high is None else high
    if low != low or high != high:
        raise ValueError(f"`low` and `high` cannot be NaN, but got low={low} and high={high}")
    if low == high and not exact:
        warnings.warn("Passing `low==high` to `testing.make_tensor` for floating or complex types is "
                      "deprecated. Use `full(...)` instead.", FutureWarning, stacklevel=3)
    elif low >= high:
        raise ValueError(f"`low` must be less than `high`, but got {low} >= {high}")
    elif high < least or low >= beyond:
        raise ValueError(f"The value interval specified by `low` and `high` is [{low}, {high}), but "
                         f"{dtype} only supports [{least}, {beyond})")
    return min(max(low, least), beyond), min(max(high, least), beyond)


def _integers(low: int, high: int, shape: Any, dtype: tt.dtype, device: Any) -> Tensor:
    if high <= tt.iinfo(tt.int64).max:
        return tt.randint(low, high, shape, dtype=dtype, device=device)
    drawn = tt.randint(low + _SIGN, high + _SIGN, shape, dtype=tt.int64, device=device)
    return (drawn ^ _SIGN).view(tt.uint64)


def assert_allclose(actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None,
                    equal_nan: bool = True, msg: str = "") -> None:
    """As assert_close, without a check of dtypes, with PyTorch's older tolerances (1e-4 and 1e-5 for
    float32). FutureWarning: it is deprecated."""
    warnings.warn("`testing.assert_allclose()` is deprecated: use `testing.assert_close()`", FutureWarning,
                  stacklevel=2)
    a = actual if isinstance(actual, Tensor) else tt.tensor(actual)
    e = expected if isinstance(expected, Tensor) else tt.tensor(expected, dtype=a.dtype)
    if rtol is None and atol is None:
        pairs = [_LOOSE.get(x.dtype.name, _TOLERANCES.get(x.dtype.name, (0.0, 0.0))) for x in (a, e)]
        rtol, atol = max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)
    assert_close(a, e, rtol=rtol, atol=atol, equal_nan=equal_nan, check_dtype=False, msg=msg or None)


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: str | Callable[[str], str] | None = None,
) -> None:
    """AssertionError unless |actual - expected| <= atol + rtol |expected| everywhere, and the shapes,
    devices and dtypes agree. Takes tensors, numbers, arrays, and sequences and mappings of these.

    rtol and atol must be given together; by default they are those of the less precise dtype of the two
    (1.3e-6 and 1e-5 for float32). `msg` replaces the message, or is a function of it. Source: the defaults
    are PyTorch's.
    """
    if (rtol is None) != (atol is None):
        raise ValueError(
            "rtol and atol must both be specified or both be unspecified, "
            f"but got rtol={rtol} and atol={atol}"
        )
    fault = _fault(actual, expected, "", (rtol, atol), equal_nan, check_device, check_dtype, check_stride,
                   allow_subclasses)
    if fault is not None:
        raise AssertionError(msg(fault) if callable(msg) else fault if msg is None else msg)


def _fault(actual: Any, expected: Any, place: str, tolerances: tuple[float | None, float | None],
           equal_nan: bool, device: bool, dtype: bool, stride: bool, subclasses: bool) -> str | None:
    """A sentence that describes the difference; None if there is none."""
    rest = (tolerances, equal_nan, device, dtype, stride, subclasses)
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        if set(actual) != set(expected):
            return f"The keys of the mappings do not match: {sorted(set(actual) ^ set(expected), key=str)}"
        return _first(_fault(actual[k], expected[k], f"{place}[{k!r}]", *rest) for k in expected)
    if all(isinstance(x, Sequence) and not isinstance(x, str) for x in (actual, expected)):
        if len(actual) != len(expected):
            return f"The length of the sequences mismatch: {len(actual)} != {len(expected)}"
        return _first(_fault(a, e, f"{place}[{i}]", *rest)
                      for i, (a, e) in enumerate(zip(actual, expected, strict=True)))
    where = f"\n\nThe failure occurred for item {place}" if place else ""
    if actual is None or expected is None:
        return None if actual is expected else f"None mismatch: {actual} is not {expected}{where}"
    numbers = isinstance(actual, _NUMBER) and isinstance(expected, _NUMBER)
    related = numbers or (isinstance(actual, type(expected)) or isinstance(expected, type(actual))
                          if subclasses else type(actual) is type(expected))
    try:
        if not related:
            raise TypeError
        a, e = as_tensor(actual).detach(), as_tensor(expected).detach()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError("No comparison pair was able to handle inputs of type "
                        f"{type(actual)} and {type(expected)}.{where}") from None
    if a.shape != e.shape:
        return f"The values for attribute 'shape' do not match: {a.shape} != {e.shape}.{where}"
    if device and a.device != e.device:
        return f"The values for attribute 'device' do not match: {a.device} != {e.device}.{where}"
    if dtype and numbers and type(actual) is not type(expected):
        return f"The (d)types do not match: {type(actual)} != {type(expected)}.{where}"
    if dtype and a.dtype != e.dtype:
        return f"The values for attribute 'dtype' do not match: {a.dtype} != {e.dtype}.{where}"
    if stride and a.stride() != e.stride():
        return f"The values for attribute 'stride()' do not match: {a.stride()} != {e.stride()}.{where}"
    return _values(a, e, tolerances, equal_nan, where)


def _first(faults: Any) -> str | None:
    return next((fault for fault in faults if fault is not None), None)


def _values(a: Tensor, e: Tensor, tolerances: tuple[float | None, float | None], equal_nan: bool,
            where: str) -> str | None:
    pairs = [_TOLERANCES.get(x.dtype.name, (0.0, 0.0)) for x in (a, e)]
    rtol = max(p[0] for p in pairs) if tolerances[0] is None else tolerances[0]
    atol = max(p[1] for p in pairs) if tolerances[1] is None else tolerances[1]
    left, right = (np.asarray((x.float() if x.dtype.name == "bfloat16" else x).numpy()) for x in (a, e))
    if not {left.dtype.kind, right.dtype.kind} & set("fc"):
        left, right = (x.astype(int).astype(object) if x.dtype.kind == "b" else x.astype(object)
                       for x in (left, right))  # integers as Python integers, which cannot overflow
    with np.errstate(all="ignore"):
        difference = np.abs(left - right)
        near = np.isfinite(difference.astype(float)) & (difference <= atol + rtol * np.abs(right))
        close = (left == right) | near
    if equal_nan and left.dtype.kind in "fc":
        close |= np.isnan(left) & np.isnan(right)
    close = np.asarray(close, bool)
    if close.all():
        return None
    bad = int((~close).sum())
    kind = "close" if rtol or atol else "equal"
    what = "Scalars" if not close.ndim else "Tensor-likes"
    share = f"Mismatched elements: {bad} / {close.size} ({100 * bad / close.size:.1f}%)"
    worst = np.where(close, -1.0, np.nan_to_num(difference.astype(float), nan=np.inf))
    at = tuple(int(i) for i in np.unravel_index(int(worst.argmax()), close.shape)) if close.ndim else ()
    return (f"{what} are not {kind}!\n\n{share}\nGreatest absolute difference: {difference[at]} at index "
            f"{at} (up to {atol} allowed; rtol {rtol}): {left[at]} and {right[at]}{where}")


_absent.attach(globals())
