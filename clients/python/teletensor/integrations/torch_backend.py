"""PyTorch process groups that are implemented by the daemon:
`torch.distributed.init_process_group("teletensor", ...)`.

`import teletensor.integrations.torch_backend` adds the backend "teletensor" to torch.distributed, with the
collectives and transfers of CPU tensors and of tensors of the device "tt". Data of CPU tensors goes through
the daemon of the current session, or the one that teletensor.connect() finds; calls with tensors of the
device are instructions of the device's session. All processes must use the same daemon, or daemons that are
connected to each other. See docs/distributed.md.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing.util
import os
import time
import uuid
import weakref
from datetime import timedelta
from typing import Any

from ._torch_caller import refuse_trace
from ._torch_calls import CALLS, Calls
from ._torch_member import Alone, Member, StreamMember

try:
    import torch
    from torch._C._distributed_c10d import Backend as _Backend
    from torch.distributed import Backend, BarrierOptions, PrefixStore, ProcessGroup
except ImportError as error:
    raise ImportError(
        "teletensor.integrations.torch_backend needs PyTorch: pip install 'teletensor[torch]'"
    ) from error

__all__ = ["TeletensorProcessGroup"]

_CPU = torch.device("cpu")
_NAME = "teletensor"  # the key in the store of the name of the daemon's groups


class TeletensorProcessGroup(Calls, ProcessGroup):  # type: ignore[misc]
    """A process group of torch.distributed whose collectives a daemon computes. Created by
    init_process_group and new_group. RuntimeError if a process does not arrive within the timeout.

    If it is the backend of the device "tt" only, as in "cpu:gloo,tt:teletensor" and where PyTorch chooses
    the backend of the accelerator, CPU tensors belong to a group of gloo or of the backend that is named. A
    process of such a group connects to a daemon when it first uses the device."""

    def __init__(self, options: Any) -> None:
        store, rank, size = options.store, options.group_rank, options.group_size
        super().__init__(store, rank, size)
        self._store, self._barriers = store, 0
        timeout = options.timeout.total_seconds()
        if rank == 0:
            store.set(_NAME, f"torch {(options.group_id or '')[:40]} {uuid.uuid4().hex}")
        self._host = _host_group(options) if _serves(options, "tt") else None

        # Without a reference to the group, whose destructor must not run in a collection of cycles: it can
        # wait for a thread that waits for Python's lock.
        def joined(of: type[Member], suffix: str = "") -> Member:
            name = store.get(_NAME).decode() + suffix
            return of(name, rank, size, timeout) if size > 1 else Alone()

        self._begin(size, rank, timeout, None if self._host is not None else joined(Member),
                    lambda: joined(StreamMember, " tt"))
        kind = ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(kind)
        facade = _Facade(self, rank, size)
        if self._host is None:
            self._register_backend(_CPU, kind, facade)
        elif _CPU in self._host._device_types:
            self._register_backend(_CPU, ProcessGroup.BackendType.GLOO, self._host._get_backend(_CPU))
        if torch._C._get_privateuse1_backend_name() == "tt":
            self._register_backend(torch.device("tt"), kind, facade)
        _groups.add(self)

    def getBackendName(self) -> str:
        """Returns "teletensor"."""
        return "teletensor"

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Waits for the other ranks through c10d's store. On rank 0 the error names the first rank that did
        not arrive, or all such ranks."""
        if self._host is not None:
            return self._host.monitored_barrier(timeout, wait_all_ranks)  # type: ignore[no-any-return]
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

    def barrier(self, opts: Any = None) -> Any:
        """Waits for the other ranks, and for what this process has computed on the device "tt"."""
        if getattr(torch, "tt", None) is not None and torch.tt._is_in_use():
            refuse_trace("barrier: it waits for the other processes and")
            torch.tt.synchronize()
        if self._host is None:
            return super().barrier(opts)
        own = BarrierOptions()  # without the device, which is not the host's
        if opts is not None:
            own.timeout = opts.timeout
        return self._host.barrier(own)

    def abort(self) -> None:
        """Leaves the group at once: calls that have not ended fail, on this and on all other ranks."""
        self._end(drop=True)

    def _end(self, drop: bool) -> None:
        self._leave(drop)
        self._host = None


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


def _serves(options: Any, device: str) -> bool:
    """Returns whether PyTorch creates the backend for this device. The name of the device is a prefix of
    the store."""
    key = f"teletensor {options.group_rank}"
    options.store.set(key, "")
    return bool(PrefixStore(f"{device}/", options.store.underlying_store).check([key]))


def _host_group(options: Any) -> ProcessGroup:
    """The group for CPU tensors, with the backend that the program names for them, or with gloo."""
    named = getattr(options, "process_group", None)
    if named is not None and _CPU in named._device_types:
        return named
    store, rank, size = options.store, options.group_rank, options.group_size
    made = ProcessGroup(store, rank, size)
    kind = ProcessGroup.BackendType.GLOO
    made._set_default_backend(kind)
    if torch.distributed.is_gloo_available():
        gloo = torch.distributed.ProcessGroupGloo(store, rank, size, timeout=options.timeout)
        made._register_backend(_CPU, kind, gloo)
    return made


def _has_device(arguments: Any) -> bool:
    """Returns whether a tensor of a call is on the device "tt"."""
    return any(_has_device(each) if isinstance(each, (list, tuple))
               else isinstance(each, torch.Tensor) and each.device.type == "tt" for each in arguments)


def _shared(name: str) -> Any:
    """The call of that name, which the group for CPU tensors answers where there is one."""
    ours = getattr(Calls, name)

    @functools.wraps(ours)
    def call(self: TeletensorProcessGroup, *args: Any, **kwargs: Any) -> Any:
        if self._host is not None and not _has_device((*args, *kwargs.values())):
            return getattr(self._host, name)(*args, **kwargs)
        return ours(self, *args, **kwargs)

    return call


for _name in CALLS:
    setattr(TeletensorProcessGroup, _name, _shared(_name))


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


Backend.register_backend("teletensor", _create, extended_api=True, devices=["cpu", "tt"])
