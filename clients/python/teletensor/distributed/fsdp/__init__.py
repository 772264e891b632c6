"""torch.distributed.fsdp: modules whose parameters are divided among the ranks, by fully_shard.

docs/distributed.md describes it.
"""

from ... import _absent
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
