"""The options of fully_shard: dtypes, and where the shards are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["CPUOffloadPolicy", "MixedPrecisionPolicy", "OffloadPolicy"]


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """The dtypes of a module that fully_shard has sharded. The shards and the optimizer keep their own
    dtypes.

    param_dtype: the dtype of the gathered parameters, and hence of the computation. None means that of
        the shards.
    reduce_dtype: the dtype of the gradients while they are averaged, or accumulated without averaging.
        None means that of the shards.
    output_dtype: the dtype to which floating-point results of the forward are cast. None means no cast.
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
    """fully_shard refuses this policy with NotImplementedError: the daemon itself moves unused tensors from
    the device to host memory and to disk when memory is needed."""

    pin_memory: bool = True
