"""Types for annotations, as in `torch.types`."""

from __future__ import annotations

import builtins
import os
from collections.abc import Sequence
from typing import IO

from ._core import Tensor, device, dtype
from ._names import absent as _absent
from ._tensors.memory_format import layout
from ._tensors.size import Size

__all__ = ["Device", "FileLike", "Number"]

_int, _float, _bool, _str, _bytes, _complex = (
    builtins.int,
    builtins.float,
    builtins.bool,
    builtins.str,
    builtins.bytes,
    builtins.complex,
)
_dtype, _device, _layout = dtype, device, layout
_size = Size | list[int] | tuple[int, ...]
_TensorOrTensors = Tensor | Sequence[Tensor]
_TensorOrOptionalTensors = Tensor | Sequence[Tensor | None]

Number = int | float | bool
Device = device | str | int | None
FileLike = str | os.PathLike[str] | IO[bytes]

_absent.attach(globals())
