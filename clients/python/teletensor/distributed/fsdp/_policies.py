"""Options of fully_shard: dtypes, and the place of shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["CPUOffloadPolicy", "MixedPrecisionPolicy", "OffloadPolicy"]


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """The dtypes of a module that fully_shard has sharded. The shards and the optimizer keep theirs.

    param_dtype: of the gathered parameters, and so of the computation. None: as the shards.
    reduce_dtype: of the gradients while they are averaged, or collected without an average. None: as the
        shards.
    output_dtype: the floating-point tensors that the forward returns are cast to it. None: not at all.
    cast_forward_inputs: whether the floating-point arguments of the forward are cast to param_dtype."""

    param_dtype: Any = None
    reduce_dtype: Any = None
    output_dtype: Any = None
    cast_forward_inputs: bool = True


@dataclass
class OffloadPolicy:
    """The shards stay on their device."""


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """fully_shard refuses it with NotImplementedError: the daemon itself moves tensors that nothing uses
    from the device to host memory and to disk when room is needed."""

    pin_memory: bool = True
