"""The interface of torch.distributed.distributed_c10d: the names of torch.distributed, and functions by
which programs get the world and its store."""

from __future__ import annotations

import warnings
from typing import Any

from . import _group, _subgroups
from ._c10d_names import *  # noqa: F403
from ._c10d_names import _coalescing_manager as _coalescing_manager
from ._collectives import *  # noqa: F403
from ._group import *  # noqa: F403
from ._objects import *  # noqa: F403
from ._point_to_point import *  # noqa: F403
from ._stores.stores import PrefixStore as PrefixStore, Store
from ._subgroups import *  # noqa: F403

__all__: list[str] = []


def _get_default_group() -> _group.ProcessGroup:
    """The world. ValueError before init_process_group."""
    return _group.found(None)


def _set_pg_timeout(timeout: Any, group: Any = None) -> None:
    """Deprecated: torch.distributed.set_timeout."""
    warnings.warn(
        "`torch.distributed.distributed_c10d._set_pg_timeout` is deprecated, please use "
        "`torch.distributed.set_timeout` instead", FutureWarning, stacklevel=2,
    )  # fmt: skip
    _group.set_timeout(timeout, group)


def _get_default_store() -> Store:
    """The world's store. ValueError before init_process_group."""
    return _subgroups.default_store()
