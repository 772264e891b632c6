"""The world of one process, and its groups."""

from __future__ import annotations

import enum
import os
import urllib.parse
from collections.abc import Sequence
from typing import Any

from .. import cuda

__all__ = [
    "GroupMember", "ProcessGroup", "ReduceOp", "Work", "destroy_process_group", "get_backend",
    "get_global_rank", "get_group_rank", "get_process_group_ranks", "get_rank", "get_world_size",
    "group", "init_process_group", "is_available", "is_backend_available", "is_gloo_available",
    "is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched", "new_group",
    "found", "is_member", "only_rank",
]  # fmt: skip

_BACKENDS = ("gloo", "nccl")


class ReduceOp(enum.Enum):
    """How the tensors of the ranks become one."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7


class ProcessGroup:
    """The one process of the world. `init_process_group` and `new_group` make it."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def rank(self) -> int:
        """0."""
        return 0

    def size(self) -> int:
        """1."""
        return 1

    def name(self) -> str:
        """Its backend: "gloo" or "nccl"."""
        return self._backend


class Work:
    """What a collective with async_op=True returns. The daemon orders the work; waiting is not needed."""

    def wait(self, timeout: Any = None) -> bool:
        """True."""
        return True

    def is_completed(self) -> bool:
        """True: what is issued later sees the result."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True


class _World(type):
    @property
    def WORLD(cls) -> ProcessGroup | None:
        """The group of all processes; None before init_process_group."""
        return _world


class group(metaclass=_World):
    """`group.WORLD` is the group of all processes; None before init_process_group."""


class GroupMember(metaclass=_World):
    """`GroupMember.WORLD` is the group of all processes, NON_GROUP_MEMBER what others get of new_group."""

    NON_GROUP_MEMBER = -100


_world: ProcessGroup | None = None


def is_available() -> bool:
    """True: a world of one process can be made."""
    return True


def is_initialized() -> bool:
    """Has init_process_group been called, and not destroy_process_group since?"""
    return _world is not None


def is_backend_available(backend: str) -> bool:
    """ "gloo", and "nccl" where the daemon has GPUs."""
    name = backend.lower()
    return name == "gloo" or name == "nccl" and cuda.is_available()


def is_gloo_available() -> bool:
    """True."""
    return True


def is_nccl_available() -> bool:
    """Has the daemon GPUs?"""
    return is_backend_available("nccl")


def is_mpi_available() -> bool:
    """False."""
    return False


def is_torchelastic_launched() -> bool:
    """Was the program started by torchrun? It sets TORCHELASTIC_RUN_ID."""
    return os.environ.get("TORCHELASTIC_RUN_ID") is not None


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
) -> None:
    """Makes the world. Its size and this process's rank are given here, in the query of init_method
    ("tcp://host:port?rank=0&world_size=1"), or by the variables WORLD_SIZE and RANK as torchrun sets them.

    backend: "gloo" or "nccl", which make no difference. Nothing is opened: init_method, store and timeout
    have no effect beside that. ValueError for a second call, an unknown backend or a rank that is not 0;
    NotImplementedError for a world of more than one process."""
    global _world
    if _world is not None:
        raise ValueError("trying to initialize the default process group twice!")
    name = (backend or "gloo").lower().rpartition(":")[2]
    if name not in _BACKENDS:
        raise ValueError(f"Invalid backend: {backend!r}; there are {', '.join(map(repr, _BACKENDS))}")
    given = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(init_method or "").query))
    size = _number("world_size", world_size, given)
    if size > 1:
        raise NotImplementedError(
            f"init_process_group: a world of {size} processes is not there yet; a world of one is "
            "(world_size=1, rank=0, or WORLD_SIZE=1 and RANK=0 in the environment)"
        )
    place = _number("rank", rank, given)
    if size != 1 or place != 0:
        raise ValueError(
            f"init_process_group: rank {place} is not in a world of {size}: in a world of 1 the rank is 0"
        )
    _world = ProcessGroup(name)


def _number(name: str, value: int, query: dict[str, str]) -> int:
    if value != -1:
        return value
    found = query.get(name, os.environ.get(name.upper()))
    if found is None:
        raise ValueError(
            f"init_process_group: {name} is not given, and the environment variable {name.upper()} "
            "expected, but not set"
        )
    return int(found)


def destroy_process_group(group: Any = None) -> None:
    """Ends the world (without an argument, or given it); other groups need no end."""
    global _world
    if found(group) is _world:
        _world = None


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: Any = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
    sort_ranks: bool = True,
) -> Any:
    """A group of these ranks: of rank 0, or GroupMember.NON_GROUP_MEMBER for an empty list. ValueError for
    other ranks."""
    world = found(None)
    if ranks is not None and any(rank != 0 for rank in ranks):
        raise ValueError(
            f"the new group's rank should be within the world_size set by init_process_group: {list(ranks)}"
        )
    if ranks is not None and len(ranks) > 1:
        raise ValueError(
            "the new group's world size should be less or equal to the world size set by init_process_group"
        )
    if ranks is not None and not ranks:
        return GroupMember.NON_GROUP_MEMBER
    return ProcessGroup(backend or world._backend)


def found(group: Any) -> ProcessGroup:
    if _world is None:
        raise ValueError(
            "Default process group has not been initialized, please make sure to call init_process_group."
        )
    if group is None:
        return _world
    if not isinstance(group, ProcessGroup):
        raise TypeError(f"group is a ProcessGroup, not {type(group).__name__}")
    return group


def is_member(group: Any) -> bool:
    """Does a collective of that group do anything here?"""
    if group == GroupMember.NON_GROUP_MEMBER and _world is not None:
        return False
    return found(group) is not None


def get_rank(group: Any = None) -> int:
    """0, or -1 where this process is not in the group. ValueError before init_process_group."""
    return 0 if is_member(group) else -1


def get_world_size(group: Any = None) -> int:
    """1, or -1 where this process is not in the group. ValueError before init_process_group."""
    return 1 if is_member(group) else -1


def get_backend(group: Any = None) -> str:
    """ "gloo" or "nccl", as init_process_group was told."""
    return found(group).name()


def get_process_group_ranks(group: Any) -> list[int]:
    """[0]."""
    found(group)
    return [0]


def get_global_rank(group: Any, group_rank: int) -> int:
    """The rank in the world of a rank of the group."""
    found(group)
    return only_rank(group_rank, "group rank")


def get_group_rank(group: Any, global_rank: int) -> int:
    """The rank in the group of a rank of the world."""
    found(group)
    return only_rank(global_rank, "global rank")


def only_rank(rank: int | None, what: str, group_rank: int | None = None) -> int:
    for each in (rank, group_rank):
        if each not in (None, 0):
            raise ValueError(f"{what} {each} is not in the group: its only rank is 0")
    return 0
