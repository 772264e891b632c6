"""The interface of torch.distributed.tensor: tensors of which each rank of a DeviceMesh has a part."""

from ..._names import absent as _absent
from ..device_mesh import DeviceMesh, init_device_mesh
from ._dtensor import DTensor, distribute_tensor
from ._placements import Partial, Placement, Replicate, Shard

__all__ = [
    "DTensor",
    "DeviceMesh",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "distribute_tensor",
    "init_device_mesh",
]

_absent.attach(globals())
