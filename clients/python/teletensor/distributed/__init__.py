"""The interface of torch.distributed: processes that compute together, each with a session of its own.

See docs/distributed.md.
"""

from .._names import absent as _absent
from ._buckets import GradBucket
from ._c10d_names import *  # noqa: F403
from ._c10d_names import __all__ as _c10d, _coalescing_manager as _coalescing_manager
from ._collectives import *  # noqa: F403
from ._collectives import __all__ as _collectives, summed as summed
from ._elastic.admission import admit
from ._group import (
    GroupMember,
    ProcessGroup,
    ReduceOp,
    Work,
    destroy_process_group,
    get_backend,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    init_process_group,
    is_available,
    is_backend_available,
    is_gloo_available,
    is_initialized,
    is_mpi_available,
    is_nccl_available,
    is_torchelastic_launched,
    members,
    new_group,
    set_timeout,
)
from ._mesh import Mesh, PerRank, Rank, connect_mesh
from ._objects import *  # noqa: F403
from ._objects import __all__ as _objects
from ._point_to_point import *  # noqa: F403
from ._point_to_point import __all__ as _point_to_point
from ._stores.daemon_store import TCPStore
from ._stores.file_store import FileStore
from ._stores.stores import DistError, DistStoreError, HashStore, PrefixStore, Store
from ._subgroups import (
    get_node_local_rank,
    new_subgroups,
    new_subgroups_by_enumeration,
    shrink_group,
    split_group,
)
from .device_mesh import DeviceMesh, init_device_mesh

__all__ = [
    "DeviceMesh",
    "init_device_mesh",
    "DistError",
    "DistStoreError",
    "FileStore",
    "GradBucket",
    "admit",
    "HashStore",
    "Mesh",
    "PerRank",
    "PrefixStore",
    "Rank",
    "Store",
    "TCPStore",
    "connect_mesh",
    "GroupMember",
    "ProcessGroup",
    "ReduceOp",
    "Work",
    "destroy_process_group",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_process_group",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "members",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "set_timeout",
    "shrink_group",
    "split_group",
]
__all__ += [*_c10d, *_collectives, *_objects, *_point_to_point]

from . import distributed_c10d as distributed_c10d  # noqa: E402

_absent.attach(globals())
