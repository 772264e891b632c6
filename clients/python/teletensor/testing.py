"""Comparison of tensors in tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ._core import Tensor
from ._tensors.convert import as_tensor

__all__ = ["assert_close"]

_NUMBER = (int, float, complex, np.number)
_TOLERANCES = {  # The relative and the absolute tolerance.
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7), "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7),
}


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
