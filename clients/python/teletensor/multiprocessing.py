"""Python's multiprocessing module with PyTorch's `spawn`.

Each process has its own connection to the daemon. A tensor that is sent to another process is pickled with
its values, which requires that `teletensor.allow_pickle` has allowed pickling. `teletensor.publish` and
`keep` share a tensor's memory instead.
"""

from __future__ import annotations

import contextlib
import multiprocessing as _multiprocessing
import multiprocessing.connection as _connection
import signal as _signal
import traceback as _traceback
from collections.abc import Callable, Sequence
from multiprocessing import *  # noqa: F403
from typing import Any

from ._names import absent as _absent

__all__ = [
    *_multiprocessing.__all__, "ProcessContext", "ProcessExitedException", "ProcessRaisedException",
    "get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy", "spawn",
    "start_processes",
]  # fmt: skip

_STRATEGIES = {"file_descriptor", "file_system"}
_strategy = "file_descriptor"


def get_all_sharing_strategies() -> set[str]:
    """Returns PyTorch's names of the strategies."""
    return set(_STRATEGIES)


def get_sharing_strategy() -> str:
    """Returns the strategy given to set_sharing_strategy last."""
    return _strategy


def set_sharing_strategy(new_strategy: str) -> None:
    """Stores the strategy, without effect: the memory of tensors is not shared between processes."""
    global _strategy
    if new_strategy not in _STRATEGIES:
        raise ValueError(f"the sharing strategy must be one of {sorted(_STRATEGIES)}, not {new_strategy!r}")
    _strategy = new_strategy


class _Failed(Exception):
    """Base class: a process that spawn() started has failed."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.msg, self.error_index, self.error_pid = msg, error_index, error_pid


class ProcessRaisedException(_Failed):
    """The function of a process raised an exception; the message contains its traceback."""


class ProcessExitedException(_Failed):
    """A process was ended by a signal or exited with a code other than 0."""

    def __init__(
        self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code, self.signal_name = exit_code, signal_name


def _run(fn: Callable[..., Any], index: int, args: tuple[Any, ...], errors: Any) -> None:
    try:
        fn(index, *args)
    except KeyboardInterrupt:
        pass
    except Exception:
        errors.send(_traceback.format_exc())
        raise SystemExit(1) from None


class ProcessContext:
    """The processes that spawn(join=False) started."""

    def __init__(self, processes: Sequence[Any], errors: Sequence[Any]) -> None:
        self.processes, self._errors = list(processes), errors
        self._left = {process.sentinel: i for i, process in enumerate(processes)}

    def pids(self) -> list[int]:
        """The ids of the processes."""
        return [process.pid for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Waits, at most timeout seconds, until at least one process has ended; returns True if all have
        ended.

        If a process has failed, the remaining processes are terminated (and killed after grace_period
        seconds), and ProcessRaisedException or ProcessExitedException is raised."""
        for sentinel in _connection.wait(self._left, timeout):
            index = self._left.pop(sentinel)
            self.processes[index].join()
            if self.processes[index].exitcode != 0:
                self._stop(grace_period)
                self._fail(index)
        return not self._left

    def _stop(self, grace_period: float | None) -> None:
        for end in ("terminate", "kill"):
            for process in self.processes:
                if process.is_alive():
                    getattr(process, end)()
            for process in self.processes:
                process.join(grace_period or 30)

    def _fail(self, index: int) -> None:
        process, errors = self.processes[index], self._errors[index]
        with contextlib.suppress(EOFError):  # the process sent no traceback
            text = f"\n\n-- Process {index} terminated with the following error:\n{errors.recv()}"
            raise ProcessRaisedException(text, index, process.pid)
        code = process.exitcode
        name = _signal.Signals(-code).name if code < 0 else None
        how = f"signal {name}" if name else f"exit code {code}"
        text = f"process {index} terminated with {how}"
        raise ProcessExitedException(text, index, process.pid, code, name)


def start_processes(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Runs fn(i, *args) in nprocs processes, i being the number of the process.

    With `join`, waits for the processes. If one fails, the remaining ones are terminated; raises
    ProcessRaisedException with the traceback if fn raised, and ProcessExitedException if the process ended
    in another way."""
    methods: Any = _multiprocessing.get_context(start_method)
    processes, errors = [], []
    for i in range(nprocs):
        receive, send = methods.Pipe(duplex=False)
        process = methods.Process(target=_run, args=(fn, i, args, send), daemon=daemon)
        process.start()
        send.close()
        processes.append(process)
        errors.append(receive)
    context = ProcessContext(processes, errors)
    if not join:
        return context
    while not context.join():
        pass
    return None


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """As start_processes()."""
    return start_processes(fn, args, nprocs, join, daemon, start_method)


_absent.attach(globals())
