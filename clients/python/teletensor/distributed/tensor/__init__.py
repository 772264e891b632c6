"""torch.distributed.tensor: tensors that the ranks of a DeviceMesh hold parts of."""

from ... import _absent
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
