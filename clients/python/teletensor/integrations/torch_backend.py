"""PyTorch process groups that are implemented by the daemon:
`torch.distributed.init_process_group("teletensor", ...)`.

`import teletensor.integrations.torch_backend` adds the backend "teletensor" to torch.distributed, with the
collectives and transfers of CPU tensors. Their data goes through the daemon of the current session, or the
one that teletensor.connect() finds; all processes must use the same daemon, or daemons that are connected
to each other. See docs/distributed.md.
"""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import time
import weakref
from datetime import timedelta
from typing import Any

from ._torch_calls import Calls
from ._torch_member import Alone, Member

try:
    import torch
    from torch._C._distributed_c10d import Backend as _Backend
    from torch.distributed import Backend, ProcessGroup
except ImportError as error:
    raise ImportError(
        "teletensor.integrations.torch_backend needs PyTorch: pip install 'teletensor[torch]'"
    ) from error

__all__ = ["TeletensorProcessGroup"]


class TeletensorProcessGroup(Calls, ProcessGroup):  # type: ignore[misc]
    """A process group of torch.distributed whose collectives a daemon computes. Created by
    init_process_group and new_group. RuntimeError if a process does not arrive within the timeout."""

    def __init__(self, options: Any) -> None:
        rank, size = options.group_rank, options.group_size
        super().__init__(options.store, rank, size)
        self._store, self._barriers = options.store, 0
        timeout = options.timeout.total_seconds()
        label = options.group_id or ""
        self._begin(Member(self._store, rank, size, timeout, label) if size > 1 else Alone(), timeout)
        kind = ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(kind)
        self._register_backend(torch.device("cpu"), kind, _Facade(self, rank, size))
        _groups.add(self)

    def getBackendName(self) -> str:
        """Returns "teletensor"."""
        return "teletensor"

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits for the other ranks through c10d's store. On rank 0 the error names the first rank that did
        not arrive, or all such ranks."""
        seconds = self._timeout if timeout is None else timeout.total_seconds()
        until, place = time.monotonic() + seconds, f"teletensor barrier {self._barriers}"
        self._barriers += 1
        if self._rank:
            self._store.set(f"{place}/{self._rank}", "")
            if not self._wait_for_key(f"{place}/end", until + seconds):  # rank 0 may wait for that long
                raise RuntimeError(
                    f"Rank {self._rank} timed out in monitoredBarrier after {round(2000 * seconds)} ms: "
                    "rank 0 has not come")
            if self._store.get(f"{place}/end"):
                raise RuntimeError(
                    f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while "
                    "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.")
            return
        missing: list[int] = []
        if seconds <= 0:
            self._store.set(f"{place}/end", "failed")
            raise RuntimeError(f"Rank {self._rank} timed out in monitoredBarrier after 0 ms")
        for rank in range(1, self._size):
            if not self._wait_for_key(f"{place}/{rank}", until):
                missing.append(rank)
                if not wait_all_ranks:
                    break
        self._store.set(f"{place}/end", "failed" if missing else "")
        if missing:
            names = ("Rank " if len(missing) == 1 else "Ranks ") + ", ".join(map(str, missing))
            raise RuntimeError(f"{names} failed to pass monitoredBarrier in {round(seconds * 1000)} ms")

    def _wait_for_key(self, key: str, until: float) -> bool:
        """Returns whether the key is in the store by that time."""
        try:
            self._store.wait([key], timedelta(seconds=max(until - time.monotonic(), 0.001)))
        except RuntimeError:
            if self._store.check([key]):
                return True
            if time.monotonic() < until - 0.001:
                raise
            return False
        return True

    def shutdown(self) -> None:
        """Leaves the group when everything that this process has sent has been received."""
        self._end(drop=False)

    def abort(self) -> None:
        """Leaves the group at once: calls that have not ended fail, on this and on all other ranks."""
        self._end(drop=True)

    def _end(self, drop: bool) -> None:
        member, self._member = self._member, None
        if member is not None:
            member.end(drop)


class _Facade(_Backend):  # type: ignore[misc]
    """Represents the group where PyTorch asks for the backend of a device."""

    supports_coalescing = supports_splitting = supports_shrinking = False
    supports_reconfigure = supports_window = supports_abort_hooks = False

    def __init__(self, group: TeletensorProcessGroup, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._group = weakref.ref(group)

    def getBackendName(self) -> str:
        """Returns "teletensor"."""
        return "teletensor"

    name = getBackendName

    def shutdown(self) -> None:
        """Does what shutdown() of the group does."""
        if (group := self._group()) is not None:
            group.shutdown()

    def abort(self) -> None:
        """Does what abort() of the group does."""
        if (group := self._group()) is not None:
            group.abort()


_groups: weakref.WeakSet[TeletensorProcessGroup] = weakref.WeakSet()
_served = 0  # the id of the process that leaves its groups at its exit


@atexit.register
def _leave_all() -> None:
    for group in list(_groups):
        group.shutdown()


def _create(options: Any, _: Any) -> TeletensorProcessGroup:
    global _served
    if _served != os.getpid():  # a process of multiprocessing does not run atexit functions
        multiprocessing.util.Finalize(None, _leave_all, exitpriority=1)
        _served = os.getpid()
    return TeletensorProcessGroup(options)


Backend.register_backend("teletensor", _create, extended_api=True, devices=["cpu"])
