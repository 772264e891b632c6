"""The data types of the standard: kinds, promotion, limits."""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple

import numpy as np

from .. import _core
from .._core import Tensor, dtype as DType

__all__ = [
    "NAMES",
    "BY_NAME",
    "can_cast",
    "finfo",
    "iinfo",
    "isdtype",
    "kind_of",
    "numpy_of",
    "promote",
]

NAMES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32",
         "float64", "complex64", "complex128")  # fmt: skip
BY_NAME: dict[str, DType] = {name: getattr(_core, name) for name in NAMES if hasattr(_core, name)}
_NAME_OF = {dtype: name for name, dtype in BY_NAME.items()}

KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
KINDS["integral"] = KINDS["signed integer"] + KINDS["unsigned integer"]
KINDS["numeric"] = KINDS["integral"] + KINDS["real floating"] + KINDS["complex floating"]


def name_of(dtype: DType) -> str:
    """The standard's name of a dtype; TypeError for float16 and bfloat16, which the standard does not
    have."""
    name = _NAME_OF.get(dtype)
    if name is None:
        raise TypeError(f"the array API standard has no {dtype}")
    return name


def numpy_of(dtype: DType) -> np.dtype[Any]:
    """NumPy's dtype of the same name."""
    return np.dtype(name_of(dtype))


def kind_of(dtype: DType) -> str:
    """'bool', 'signed integer', 'unsigned integer', 'real floating' or 'complex floating'."""
    name = name_of(dtype)
    return next(kind for kind, names in KINDS.items() if name in names)


def isdtype(dtype: DType, kind: Any) -> builtins.bool:
    """Returns whether `dtype` is of this kind, or of one of these kinds or dtypes."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, each) for each in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise ValueError(f"unknown kind of dtype: {kind!r}")
        return _NAME_OF.get(dtype) in KINDS[kind]
    return builtins.bool(dtype == kind)


def promote(*dtypes: DType) -> DType:
    """The result of the standard's type promotion; TypeError for kinds that do not mix."""
    result = dtypes[0]
    for other in dtypes[1:]:
        result = _promote2(result, other)
    return result


def _promote2(a: DType, b: DType) -> DType:
    if a == b:
        return a
    kinds = {kind_of(a), kind_of(b)}
    names = {name_of(a), name_of(b)}
    integers = kinds <= {"signed integer", "unsigned integer"}
    floats = kinds <= {"real floating", "complex floating"}
    if not (integers or floats) or (integers and len(kinds) == 2 and "uint64" in names):
        raise TypeError(f"{name_of(a)} and {name_of(b)} do not promote in the array API standard")
    return BY_NAME[np.promote_types(numpy_of(a), numpy_of(b)).name]


def can_cast(from_: Any, to: DType, /) -> builtins.bool:
    """Returns whether the dtype (or an array's dtype) promotes to the other one."""
    origin = from_ if isinstance(from_, DType) else from_.dtype
    try:
        return promote(origin, to) == to
    except TypeError:
        return False


class FloatLimits(NamedTuple):
    """The result of finfo."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntegerLimits(NamedTuple):
    """The result of iinfo."""

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype(type: Any) -> DType:
    found: DType = type.dtype if hasattr(type, "dtype") and not isinstance(type, DType) else type
    if not isinstance(found, DType) or isinstance(found, Tensor):
        raise TypeError(f"expected a dtype or an array, got {type!r}")
    return found


def finfo(type: Any, /) -> FloatLimits:
    """The limits of a floating-point dtype; for a complex dtype those of its parts."""
    dtype = _dtype(type)
    if not isdtype(dtype, ("real floating", "complex floating")):
        raise TypeError(f"finfo is for floating-point dtypes, not for {dtype}")
    limits = np.finfo(numpy_of(dtype))
    return FloatLimits(
        int(limits.bits),
        float(limits.eps),
        float(limits.max),
        float(limits.min),
        float(limits.smallest_normal),
        BY_NAME[np.dtype(limits.dtype).name],
    )


def iinfo(type: Any, /) -> IntegerLimits:
    """The limits of an integer dtype."""
    dtype = _dtype(type)
    if not isdtype(dtype, "integral"):
        raise TypeError(f"iinfo is for integer dtypes, not for {dtype}")
    limits = np.iinfo(numpy_of(dtype))
    return IntegerLimits(int(limits.bits), int(limits.max), int(limits.min), dtype)
