"""Facts about dtypes: limits, promotion, casts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core
from .._core import Tensor

__all__ = ["can_cast", "finfo", "iinfo", "promote_types", "result_type"]

# The names of dtypes in PyTorch's older type names: FloatTensor, LongTensor, ...
TYPE_NAMES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16",
              "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int", "int64": "Long",
              "bool": "Bool"}


def is_inexact(x: _core.Tensor) -> bool:
    """Returns whether the dtype is a floating-point or complex one, and so can have a derivative."""
    return x.dtype.is_floating_point or x.dtype.is_complex


def type_name(dtype: _core.dtype) -> str:
    """The dtype's name in PyTorch's type names and errors: Float, Long, ComplexFloat, UInt16, ..."""
    if dtype.is_complex:
        return f"Complex{type_name(dtype.to_real())}"
    return TYPE_NAMES.get(dtype.name, dtype.name.replace("uint", "UInt"))


@dataclass(init=False, frozen=True, repr=False)
class finfo:
    """The limits of a floating-point dtype; for a complex dtype, those of its parts."""

    bits: int
    eps: float
    max: float
    min: float
    resolution: float
    smallest_normal: float
    tiny: float
    dtype: str

    def __init__(self, type: _core.dtype | None = None) -> None:
        dtype = _core.default_dtype() if type is None else type
        if not (dtype.is_floating_point or dtype.is_complex):
            raise TypeError(f"torch.finfo() requires a floating point input type. Use torch.iinfo to "
                            f"handle '{dtype}'")
        name = {"complex64": "float32", "complex128": "float64"}.get(dtype.name, dtype.name)
        if name == "bfloat16":
            facts: tuple[Any, ...] = (16, 2.0**-7, (2 - 2.0**-7) * 2.0**127, 0.01, 2.0**-126)
        else:
            of = np.finfo(name)
            facts = (of.bits, float(of.eps), float(of.max), float(f"1e-{of.precision}"), float(of.tiny))
        bits, eps, largest, resolution, tiny = facts
        for key, value in {"bits": bits, "eps": eps, "max": largest, "min": -largest,
                           "resolution": resolution, "smallest_normal": tiny, "tiny": tiny,
                           "dtype": name}.items():
            object.__setattr__(self, key, value)

    def __repr__(self) -> str:
        names = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        facts = ", ".join(f"{name}={getattr(self, name):g}" for name in names)
        return f"finfo({facts}, dtype={self.dtype})"


@dataclass(init=False, frozen=True, repr=False)
class iinfo:
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: str

    def __init__(self, type: _core.dtype) -> None:
        if type.is_floating_point or type.is_complex or type == _core.bool:
            raise TypeError(f"torch.iinfo() requires an integer input type. Use torch.finfo to handle "
                            f"'{type}'")
        of = np.iinfo(type.name)
        for key, value in {"bits": of.bits, "max": int(of.max), "min": int(of.min),
                           "dtype": type.name}.items():
            object.__setattr__(self, key, value)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


def promote_types(type1: _core.dtype, type2: _core.dtype) -> _core.dtype:
    """The smallest dtype to which both dtypes convert."""
    found: _core.dtype = _core.promote(type1, type2)
    return found


def can_cast(from_: _core.dtype, to: _core.dtype) -> bool:
    """Returns whether a result of dtype from_ may be stored in place into a tensor of dtype to."""
    return _core.can_cast(from_, to)


def _combined(high: _core.dtype | None, low: _core.dtype | None) -> _core.dtype | None:
    """PyTorch's promotion rule for operands of two priorities: the lower-priority dtype matters only if its
    category is higher."""
    if high is None or low is None:
        return high or low
    if high.is_complex or (high.is_floating_point and not low.is_complex):
        return high
    if high.is_floating_point:
        paired: _core.dtype = high.to_complex()
        return paired
    if high == _core.bool or low.is_floating_point or low.is_complex:
        return promote_types(high, low)
    return high


def result_type(tensor1: Any, tensor2: Any) -> _core.dtype:
    """The dtype of the result of arithmetic on two tensors or numbers."""
    ranks: list[_core.dtype | None] = [None, None, None]
    for x in (tensor1, tensor2):
        if isinstance(x, Tensor):
            rank, dtype = int(x.dim() == 0), x.dtype
        elif isinstance(x, bool):
            rank, dtype = 2, _core.bool
        elif isinstance(x, int):
            rank, dtype = 2, _core.int64
        elif isinstance(x, float):
            rank, dtype = 2, _core.default_dtype()
        else:
            number: Any = getattr(_core, "complex128" if _core.default_dtype().name == "float64"
                                  else "complex64", None)
            if not isinstance(x, complex) or number is None:
                raise TypeError(f"result_type() takes tensors and numbers, not {_core.described(x)}")
            rank, dtype = 2, number
        known = ranks[rank]
        ranks[rank] = dtype if known is None else _core.promote(known, dtype)
    out = _combined(ranks[0], _combined(ranks[1], ranks[2]))
    assert out is not None
    return out
