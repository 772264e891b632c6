"""The interface of torch.distributed.fsdp: modules whose parameters fully_shard divides among the ranks.

See docs/distributed.md.
"""

from typing import Any

from ..._names import absent as _absent
from ._module import FSDPModule, UnshardHandle, fully_shard, register_fsdp_forward_method
from ._policies import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from ._shards import ShardedParameter

__all__ = [
    "CPUOffloadPolicy",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "ShardedParameter",
    "UnshardHandle",
    "fully_shard",
    "register_fsdp_forward_method",
]

_absent.attach(globals())
_missing = globals()["__getattr__"]


def __getattr__(name: str) -> Any:
    if name == "FullyShardedDataParallel":
        raise AttributeError(
            "torch.distributed.fsdp.FullyShardedDataParallel (FSDP1) is not supported: use "
            "fully_shard(module), of PyTorch's FSDP2, on the blocks of a model and then on the model",
            name=name,
        )
    return _missing(name)
