"""Element types that the daemon does not have: floating-point numbers of at most 8 bits, integers of 2 and
4 bits."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .. import _api as tt
from .._core import Tensor

__all__ = ["FLOATS", "INTEGERS", "decoded", "rounded", "wrapped"]

# For each type: bits of exponent and of mantissa, bias, code of the largest magnitude, and what follows
# beyond it ("inf", "nan", or "" for nothing).
FLOATS: dict[str, tuple[int, int, int, int, str]] = {
    "float8_e4m3fn": (4, 3, 7, 0x7E, "nan"),
    "float8_e4m3fnuz": (4, 3, 8, 0x7F, "nan"),
    "float8_e5m2": (5, 2, 15, 0x7B, "inf"),
    "float8_e5m2fnuz": (5, 2, 16, 0x7F, "nan"),
    "float4_e2m1fn": (2, 1, 1, 0x7, ""),
    "float8_e8m0fnu": (8, 0, 127, 0xFE, "nan"),
}
INTEGERS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}


def _magnitude(name: str, code: int) -> float:
    exponent_bits, mantissa_bits, bias, _, _ = FLOATS[name]
    if name == "float8_e8m0fnu":
        return float(2.0 ** (code - bias))
    exponent, mantissa = code >> mantissa_bits, code & (1 << mantissa_bits) - 1
    if exponent == 0:
        return float(2.0 ** (1 - bias - mantissa_bits) * mantissa)
    return float(2.0 ** (exponent - bias) * (1 + mantissa / (1 << mantissa_bits)))


@functools.cache
def _values(name: str) -> np.ndarray[Any, Any]:
    """The value of each code of the type."""
    exponent_bits, mantissa_bits, _, largest, beyond = FLOATS[name]
    if name == "float8_e8m0fnu":
        return np.array([_magnitude(name, c) for c in range(255)] + [np.nan], np.float32)
    half = 1 << exponent_bits + mantissa_bits
    found = np.full(2 * half, np.nan, np.float32)
    for code in range(largest + 1):
        found[code], found[half + code] = _magnitude(name, code), -_magnitude(name, code)
    if name.endswith("uz"):
        found[half] = np.nan
    if beyond == "inf":
        found[largest + 1], found[half + largest + 1] = np.inf, -np.inf
    return found


def decoded(name: str, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The numbers that the codes represent, in float32, int8 or uint8."""
    if name in FLOATS:
        values: np.ndarray[Any, Any] = _values(name)[codes]
        return values
    if name.startswith("u"):
        return codes
    sign = np.uint8(1 << INTEGERS[name] - 1)
    return ((codes ^ sign).astype(np.int16) - sign).astype(np.int8)


def rounded(x: Tensor, name: str, saturate: bool = True, mode: str = "nearest") -> Any:
    """`x` rounded to numbers of a narrow floating-point type, in float32. Ties are rounded to the even
    code. Numbers beyond the largest magnitude become the largest one if `saturate`; if not, infinity or
    NaN, depending on the type."""
    _, _, _, largest, beyond = FLOATS[name]
    x = x.float()
    grid = [_magnitude(name, code) for code in range(largest + 1)]
    grid.append(min(2 * grid[-1] - grid[-2], 3.4028234e38))  # the next number beyond the largest
    steps = np.array(grid, np.float64)
    places = tt.tensor(
        steps if mode == "up" else steps[1:] if mode == "down" else (steps[:-1] + steps[1:]) / 2
    )
    magnitude = x.abs().double()
    below = tt.bucketize(magnitude, places, right=mode == "down")
    if mode == "nearest":
        above = tt.bucketize(magnitude, places, right=True)
        to_upper = above != below if name == "float8_e8m0fnu" else (above != below) & (below % 2 == 1)
        below = tt.where(to_upper, above, below)
    below = below.clamp(max=largest + 1)
    most = grid[-2]
    out = most if saturate or not beyond else float("inf") if beyond == "inf" else float("nan")
    found = tt.tensor(np.array([*grid[:-1], out], np.float32))[below]
    found = tt.copysign(found, x) if name != "float8_e8m0fnu" else found
    if name.endswith("uz"):
        found = found + 0.0  # the type has only one zero
    # the type has no NaN: negative zero represents it
    return tt.where(x.isnan(), x if beyond else tt.full_like(x, -0.0), found)


def wrapped(x: Tensor, name: str) -> Tensor:
    """`x` converted to integers of 2 or 4 bits, in int8 or uint8: the lowest bits of the next lower
    integer."""
    bits = INTEGERS[name]
    low = x.to(tt.int32) & (1 << bits) - 1
    if name.startswith("u"):
        return low.to(tt.uint8)
    half = 1 << bits - 1
    return ((low ^ half) - half).to(tt.int8)
