"""Functions that create several groups at once, and functions about the world: its store, the rank on a
machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from .. import cuda
from ._group import GroupMember, ProcessGroup, found, get_world_size, new_group, replace_world
from ._stores.daemon_store import DaemonStore, Way, own_place, place_of
from ._stores.stores import HashStore, PrefixStore, Store

__all__ = ["default_store", "get_node_local_rank", "new_subgroups", "new_subgroups_by_enumeration",
           "shrink_group", "split_group"]


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """The rank among the processes on this machine: the variable LOCAL_RANK as torchrun sets it, or
    `fallback_rank` if it is not set. RuntimeError if both are missing."""
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is None:
        raise RuntimeError("LOCAL_RANK is not in the environment. Consider passing fallback_rank to allow "
                           "`get_node_local_rank` to work when not launched with torchrun")
    return int(fallback_rank)


def new_subgroups(
    group_size: int | None = None,
    group: Any = None,
    timeout: Any = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | None, list[Any]]:
    """Creates groups of `group_size` processes with consecutive ranks; returns the group of this process,
    and all groups. group_size defaults to the number of the daemon's GPUs. ValueError if the world's size
    is not a multiple of it."""
    if group_size is None:
        if not cuda.is_available():
            raise ValueError("new_subgroups: group_size must be given if the daemon has no GPU")
        group_size = cuda.device_count()
    size = get_world_size(group)
    if group_size <= 0:
        raise ValueError(f"The arg 'group_size' ({group_size}) must be positive")
    if size < group_size:
        raise ValueError(f"The arg 'group_size' ({group_size}) must not exceed the world size ({size})")
    if size % group_size != 0:
        raise ValueError(f"The world size ({size}) must be divisible by group_size={group_size}")
    ranks = found(group)._ranks
    parts = [ranks[at : at + group_size] for at in range(0, size, group_size)]
    return new_subgroups_by_enumeration(parts, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: Any = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[ProcessGroup | None, list[Any]]:
    """Creates a group for each list of ranks; returns the group of this process (None if it is in no list),
    and all groups. ValueError for a rank in two lists."""
    if not ranks_per_subgroup_list:
        raise ValueError("The arg 'ranks_per_subgroup_list' cannot be empty")
    lists: dict[int, Sequence[int]] = {}
    for ranks in ranks_per_subgroup_list:
        for rank in ranks:
            if rank in lists:
                raise ValueError(f"Rank {rank} has appeared in both subgroup {lists[rank]} and {ranks}")
            lists[rank] = ranks
    groups = [new_group(ranks, timeout, backend) for ranks in ranks_per_subgroup_list]
    own = [group for group in groups if isinstance(group, ProcessGroup)]
    return own[0] if own else None, groups


def split_group(
    parent_pg: ProcessGroup | None = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: Any = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
) -> Any:
    """Splits `parent_pg` (the world by default) into these lists of its ranks; returns the group of this
    process, or GroupMember.NON_GROUP_MEMBER if the process is in no list. The ranks in a new group have the
    order of its list. All processes of the parent call it with the same lists. `backend` must be that of
    the parent (ValueError)."""
    parent = found(parent_pg)
    if backend is not None and backend.lower().rpartition(":")[2] != parent.name():
        raise ValueError(f"split_group: the backend is the parent's, {parent.name()!r}, not {backend!r}")
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    ranks = [rank for each in split_ranks for rank in each]
    if any(not 0 <= rank < parent.size() for rank in ranks):
        raise ValueError(f"split_group: ranks must be from 0 to {parent.size() - 1}, not {ranks}")
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"split_group: a rank occurs more than once in {ranks}")
    if not all(split_ranks):
        raise ValueError("split_group: the split group cannot be empty")
    part = parent._part([[parent._ranks[rank] for rank in each] for each in split_ranks], timeout)
    return GroupMember.NON_GROUP_MEMBER if part is None else part


SHRINK_DEFAULT, SHRINK_ABORT = 0, 1


def shrink_group(
    ranks_to_exclude: list[int],
    group: Any = None,
    shrink_flags: int = SHRINK_DEFAULT,
    pg_options: Any = None,
) -> ProcessGroup:
    """Creates a group of all ranks of `group` except these, in the same order. The remaining ranks call it,
    even after a RankLostError has ended the group. Without `group`, or if it is the world, the result
    becomes the world, in which the ranks are renumbered; earlier groups keep the previous numbers.
    shrink_flags have no effect, because no function waits for a collective.

    TypeError if ranks_to_exclude is not a list; ValueError if it is empty, contains all ranks, a rank twice
    or one that is not in the group, and for unknown flags; RuntimeError on a rank that is excluded."""
    parent = found(group)
    if not isinstance(ranks_to_exclude, list):
        raise TypeError(f"ranks_to_exclude must be a list, but got {type(ranks_to_exclude).__name__}")
    if not ranks_to_exclude:
        raise ValueError("ranks_to_exclude cannot be empty")
    if shrink_flags not in (SHRINK_DEFAULT, SHRINK_ABORT):
        raise ValueError(f"Invalid shrink_flags value: {shrink_flags}")
    excluded = set(ranks_to_exclude)
    if len(excluded) != len(ranks_to_exclude) or not excluded <= set(range(parent.size())):
        raise ValueError(
            f"shrink_group: different ranks from 0 to {parent.size() - 1} are expected, not "
            f"{ranks_to_exclude}"
        )
    if len(excluded) == parent.size():
        raise ValueError(f"Cannot exclude all {parent.size()} ranks from the group")
    if parent.rank() in excluded:
        raise RuntimeError(
            f"Rank {parent.rank()} is in the exclusion list and should not call shrink_group()"
        )
    rest = [rank for i, rank in enumerate(parent._ranks) if i not in excluded]
    made = parent._part([rest])
    assert made is not None
    return replace_world(made) if parent is found(None) else made


def default_store() -> Store:
    """The store of the world: the one that was given to init_process_group, or one that only its processes
    use. ValueError before init_process_group."""
    world = found(None)
    if world._store is None:
        world._store = _made(world)
    return PrefixStore("default_pg", world._store)


def _made(world: ProcessGroup) -> Store:
    if world.size() == 1:
        return HashStore()
    host, _, port = world._where.rpartition(":")
    place = place_of(host, int(port) if port.isdecimal() else 0, own_place)
    return DaemonStore(place, f"world {world._life:x}", Way.SHARE)
