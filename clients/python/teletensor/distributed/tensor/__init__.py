"""The interface of torch.distributed.tensor: tensors of which each rank of a DeviceMesh has a part."""

from ..._names import absent as _absent
from ..device_mesh import DeviceMesh, init_device_mesh
from ._distribute import distribute_module
from ._dtensor import DTensor, distribute_tensor
from ._factories import empty, full, ones, rand, randn, zeros
from ._placements import Partial, Placement, Replicate, Shard

__all__ = [
    "DTensor",
    "DeviceMesh",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "distribute_module",
    "distribute_tensor",
    "empty",
    "full",
    "init_device_mesh",
    "ones",
    "rand",
    "randn",
    "zeros",
]

_absent.attach(globals())
