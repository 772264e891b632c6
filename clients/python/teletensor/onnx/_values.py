"""Values of a running model: their dtypes, and which of them are on the daemon and which on the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _api as tt
from .._core import Tensor
from .._script import capturing as _capturing
from .._tensors.arrays import array_of, tensor_of
from ._file import NUMPY, TYPES, OnnxError, Stored
from ._narrow import decoded

__all__ = [
    "MAX_KEPT", "Narrow", "NotCaptured", "bounded", "constant", "dtype", "dtype_name", "host", "on_daemon",
    "shape_of", "type_name",
]  # fmt: skip

MAX_KEPT = 1024  # elements of a constant that stays on the host
MAX_PLACES = 2**26  # elements of a table of positions or weights that an operator creates on the host


class NotCaptured(RuntimeError):
    """The model cannot become a program: a computed value decides what it computes next, or it has too many
    steps. `node` is the text of the node at which this was detected."""

    node = ""


@dataclass
class Narrow:
    """Numbers of a type that the daemon does not have, in a tensor of a wider type that represents them
    exactly: float32 for floating-point numbers of at most 8 bits, int8 and uint8 for integers of 2 and 4
    bits."""

    type: str
    tensor: Tensor


def type_name(number: int) -> str:
    """The name of an element type by its number in the file."""
    if number not in TYPES:
        raise OnnxError(f"unknown element type {number}")
    return TYPES[number]


def dtype(name: str) -> tt.dtype:
    """The dtype of that name. OnnxError if the daemon does not have it."""
    if name not in NUMPY and name != "bfloat16":
        raise OnnxError(f"elements of type {name} are not supported here")
    found: tt.dtype = getattr(tt, name)
    return found


def dtype_name(value: Any) -> str:
    """The name of the type of a value's elements."""
    if isinstance(value, Narrow):
        return value.type
    if isinstance(value, Tensor):
        return str(value.dtype.name)
    return "string" if value.dtype == object else str(value.dtype.name)


def shape_of(value: Any) -> tuple[int, ...]:
    """The sizes of a value."""
    return tuple((value.tensor if isinstance(value, Narrow) else value).shape)


def constant(stored: Stored) -> Any:
    """A constant of the file: on the host if it is small, on the daemon if not."""
    if stored.type in NUMPY:
        array = stored.array
        return np.array(array) if array.size <= MAX_KEPT else tt.tensor(array)
    if stored.type == "bfloat16":
        return tensor_of("bfloat16", stored.array)
    if stored.type == "string":
        return stored.array
    values = decoded(stored.type, stored.array)
    return Narrow(stored.type, tt.tensor(values))


def bounded(count: int) -> None:
    """OnnxError if a table on the host would have more than MAX_PLACES elements."""
    if count > MAX_PLACES:
        raise OnnxError(
            f"a window or a size of it needs a table of {count} elements, at most {MAX_PLACES}"
        )


def on_daemon(value: Any) -> Tensor:
    """The value as a tensor. OnnxError if it is not one."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and value.dtype != object:
        return tt.tensor(value)
    what = dtype_name(value) if isinstance(value, (Narrow, np.ndarray)) else type(value).__name__
    raise OnnxError(f"expected a tensor, not {what}")


def host(value: Any) -> np.ndarray[Any, Any]:
    """The value as an array. Waits for the value of a tensor; in a captured call, which must not wait,
    raises NotCaptured."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Narrow):
        value = value.tensor
    if not isinstance(value, Tensor):
        return np.asarray(value)
    if _capturing.active() is not None:
        raise NotCaptured("the next step depends on a value that is on the daemon")
    array: np.ndarray[Any, Any] = (
        value.float().numpy() if value.dtype == tt.bfloat16 else array_of(value)[1]
    )
    return array
